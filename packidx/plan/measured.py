"""A cost model out of the step times of a run (`packidx.torch.StepLog`).

A rank's step takes  a·Σl² + b·Σl + c·Σp^k + d  seconds, over the samples l of its packs and the
patches p of their images; k is 1 or 2, whichever explains more. A step takes as long as its slowest
rank: which one that is follows from the terms, so both are found in turns. The fit is the
non-negative least squares of relative errors, and of fits as good the one with fewer terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.errors import OptionError
from packidx.format.step_log import log_files, logged_steps

_CONSTANT = "constant"
_LLM = {"llm_linear": "length", "llm_attention": "attention_cost"}
_VIT = {"vit_linear": "vision_patches", "vit_attention": "vision_cost"}

_RUN = ("snapshot_id", "global_batch", "world_size")
_LEAST = 20
"""Steps, below which nothing is fitted."""
_ROUNDS = 20
_CHANCE = 4.0
"""Error variances that a term must explain: two standard errors."""
_OUTLIER = 6.0
"""Robust sigmas beyond which a step was held up by something else, such as a checkpoint."""
_KNOWN = """QUALIFY bool_and(vision_patches + vision_cost IS NOT NULL)
    OVER (PARTITION BY snapshot_id, epoch, step)
    OR NOT bool_or(vision_patches + vision_cost IS NOT NULL) OVER ()"""
"""Leaves out steps of which some pack's patches are not known, unless they are of none."""
_UNCLEAR = 0.05
"""A share of a step's time, known to no less, that counts as not known."""


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Weights in seconds, and how far to trust them.

    Attributes:
        weights: by name (`packidx.plan.cost_model`), positive ones alone; `constant` is seconds of
            a step that no pack changes.
        shares: of a step's time, by name, and their standard errors.
        error: root of the mean squared relative error of a step's time.
        explained: R², the share of the variance of the times that is explained.
        num_steps, num_outliers: steps that were fitted, and that were left out as outliers.
        snapshot_id, global_batch, world_size: of the last step.
    """

    weights: dict[str, float]
    shares: dict[str, tuple[float, float]]
    error: float
    explained: float
    num_steps: int
    num_outliers: int
    snapshot_id: str = ""
    global_batch: int = 0
    world_size: int = 0

    @property
    def word(self) -> str:
        """What ``--cost`` takes instead, in four digits."""
        costs = {name: value for name, value in self.weights.items() if name != _CONSTANT}
        return ",".join(f"{name}={value:.3e}" for name, value in costs.items())

    @property
    def unclear(self) -> list[str]:
        """Terms that these steps do not tell apart."""
        return [name for name, (_, error) in self.shares.items() if error > _UNCLEAR]


def measured_cost(folder: str) -> MeasuredCost:
    """Fit the cost model to the log in `folder`.

    Raises:
        SourceError, FormatError: there is no log.
        OptionError: it has too few steps with a time, or nothing of the language model shows.
    """
    names = [*_LLM.values(), *_VIT.values()]
    columns = ", ".join(f"coalesce({name}, 0)::DOUBLE" for name in names)
    logged = logged_steps(log_files(folder))
    connection = duckdb.connect()
    found = connection.execute(
        "SELECT dense_rank() OVER (ORDER BY snapshot_id, epoch, step), seconds, "
        f"{columns} FROM ({logged}) WHERE seconds > 0 AND isfinite(seconds) {_KNOWN}"
        " ORDER BY 1, rank"
    ).fetchnumpy()
    step, seconds, *counts = map(np.asarray, found.values())
    starts = np.flatnonzero(np.diff(step, prepend=-1))
    if len(starts) < _LEAST:
        raise OptionError(
            f"cost measured:{folder}: {len(starts)} steps have a time, too few to fit: log"
            f" {_LEAST} or more"
        )
    terms = dict(zip([*_LLM, *_VIT], counts, strict=True)) | {_CONSTANT: np.ones(len(step))}
    times = np.maximum.reduceat(seconds, starts)
    towers: list[list[str]] = [[name] for name in _VIT if terms[name].any()]
    fits = [_fit([*_LLM, *tower, _CONSTANT], terms, starts, times) for tower in towers or [[]]]
    best = min(fits, key=lambda fit: fit.error)
    if not any(name in best.weights for name in _LLM):
        raise OptionError(
            f"cost measured:{folder}: the steps' times do not depend on the tokens of their"
            " packs, so there is nothing to fit: name a preset"
        )
    last = connection.execute(
        f"SELECT snapshot_id, global_batch, world_size FROM ({logged}) ORDER BY session DESC"
    ).fetchone()
    return replace(best, **dict(zip(_RUN, last or (), strict=True)))


def _fit(
    names: Sequence[str], terms: dict[str, Float64s], starts: Int64s, times: Float64s
) -> MeasuredCost:
    """Fit terms of ranks, [rows] each, whose steps begin at `starts`, to the steps' times."""
    scale = np.array([terms[name].max() for name in names])
    rows = np.stack([terms[name] for name in names], axis=1) / scale
    weights, kept = np.ones(len(names)), np.ones(len(times), bool)
    slowest: list[int] = []
    for _ in range(_ROUNDS):
        before, slowest = slowest, _slowest(rows @ weights, starts)
        relative = rows[slowest] / times[:, None]
        weights = _non_negative(relative[kept])
        errors = relative @ weights - 1.0
        distance = np.abs(errors - np.median(errors))
        kept = distance <= _OUTLIER * 1.4826 * np.median(distance) + 1e-9
        if before == slowest:
            break
    relative, of_steps, held = relative[kept], (rows[slowest] @ weights)[kept], times[kept]
    error = float(np.sqrt(np.mean((relative @ weights - 1.0) ** 2)))
    shares = zip(relative.mean(axis=0) * weights, _errors(relative, error), strict=True)
    return MeasuredCost(
        {n: float(w / s) for n, w, s in zip(names, weights, scale, strict=True) if w > 0},
        {n: (float(a), float(b)) for n, (a, b) in zip(names, shares, strict=True)},
        error,
        float(1 - ((held - of_steps) ** 2).sum() / (((held - held.mean()) ** 2).sum() or 1.0)),
        int(kept.sum()),
        int((~kept).sum()),
    )


def _slowest(seconds: Float64s, starts: Int64s) -> list[int]:
    """The row of each step's largest value."""
    ends = np.append(starts[1:], len(seconds))
    return [int(a + seconds[a:b].argmax()) for a, b in zip(starts, ends, strict=True)]


def _non_negative(rows: Float64s) -> Float64s:
    """The weights, 0 or more, with which the terms of each row come nearest to 1.

    All sets of the few terms are tried. Of those as good as the best, but for what chance does to
    one term, it is the smallest one, of these the one of the first terms: the constant is last.
    """
    terms = rows.shape[1]
    tried: list[tuple[float, tuple[int, ...], Float64s]] = []
    for size in range(1, terms + 1):
        for chosen in itertools.combinations(range(terms), size):
            weights = np.zeros(terms)
            weights[[*chosen]] = np.linalg.lstsq(rows[:, chosen], np.ones(len(rows)), rcond=None)[0]
            if (weights >= 0).all():
                tried.append((float(((rows @ weights - 1.0) ** 2).sum()), chosen, weights))
    most = min(squares for squares, *_ in tried) * (1 + _CHANCE / len(rows)) + 1e-12
    return next(weights for squares, _, weights in tried if squares <= most)


def _errors(rows: Float64s, error: float) -> Float64s:
    """Standard errors of the terms' shares, as if none were bounded: a bound makes none surer."""
    norms = np.sqrt((rows**2).sum(axis=0))
    products = (rows / norms).T @ (rows / norms)
    inverse = np.linalg.inv(products + 1e-8 * np.eye(len(norms)))
    spread: Float64s = max(error, 1e-3) * np.sqrt(np.diag(inverse)) / norms * rows.mean(axis=0)
    return spread
