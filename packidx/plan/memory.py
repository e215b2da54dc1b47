"""Memory of a pack: bytes = a·tokens + b·patches + c·samples + d, as a limit of packs.

1. The four weights are given, or fitted to the peaks that `StepLog` kept of a run.
2. A step's peak is that of its heaviest pack, which follows from the weights; so both are found in
   turns, the weights by least squares with none below 0.
3. d then rises until no step that was logged took more than its estimate.
4. A pack's limit is `--memory` less d; each sample takes a·tokens + b·patches + c of it, in units
   of a millionth of the limit, rounded up.

With a = 2 MB, b = 0.5 MB, c = 0 and d = 20 GB, `--memory 60GB` leaves 40 GB: a sample of 1,000
tokens and 2,000 patches takes 3 GB of it.
"""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pyarrow.parquet as pq

from packidx.arrays import Float64s, Int64s, Ints
from packidx.errors import OptionError
from packidx.format.index import MemoryModel, Options
from packidx.format.step_log import log_files
from packidx.io.files import parse_size

WEIGHTS = {"a": "per_token", "b": "per_patch", "c": "per_sample", "d": "fixed"}
"""Name of a weight in ``--memory-model`` -> field of `MemoryModel`."""
_UNITS = 1 << 20
_FEWEST = 8  # steps that a fit needs: twice as many as weights
_ROUNDS = 20
_ADVICE = "write a=…,b=…,c=…,d=… (bytes of a token, a patch, a sample, and of none), or name the"


def parse_memory(size: str | None, model: str | None) -> MemoryModel | None:
    """Return the limit of ``--memory`` and ``--memory-model``; None if neither is given.

    Args:
        size: bytes, such as ``70GiB``.
        model: weights, or the folder of a `StepLog`.

    Raises:
        OptionError: one without the other, or no size, or no weights.
        SourceError, FormatError: the folder holds no log, or a damaged one.
    """
    if size is None and model is None:
        return None
    if size is None or model is None:
        given, other = (
            ("--memory-model", "--memory") if size is None else ("--memory", "--memory-model")
        )
        raise OptionError(f"{given} needs {other}: give both")
    if not (limit := parse_size(size)):
        raise OptionError(f"--memory is {size!r}: write a size such as 70GiB")
    weights = _parse_weights(model) if "=" in model else fit_memory(model)
    if weights["fixed"] >= limit:
        raise OptionError(
            f"--memory {size} is below the {weights['fixed']:,.0f} bytes that are taken without"
            " any pack: raise it"
        )
    return MemoryModel(limit=limit, **weights)


def _parse_weights(text: str) -> dict[str, float]:
    weights = dict.fromkeys(WEIGHTS.values(), 0.0)
    for item in text.split(","):
        name, _, value = map(str.strip, item.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in WEIGHTS or not 0 <= number < math.inf:
            raise OptionError(f"--memory-model has {item!r}: {_ADVICE} folder of a StepLog")
        weights[WEIGHTS[name]] = number
    return weights


def fit_memory(folder: str) -> dict[str, float]:
    """Fit the weights to the steps of a log; no step exceeds its estimate.

    Raises:
        OptionError: fewer than eight steps state their memory.
        SourceError, FormatError: there is no log, or it is damaged.
    """
    if not os.path.isdir(folder):
        raise OptionError(f"--memory-model {folder} is not there: {_ADVICE} folder of a StepLog")
    steps: list[Float64s] = []
    peaks: list[float] = []
    for file in log_files(folder):
        table = pq.read_table(file, columns=["memory", "packs"], partitioning=None)
        for row in table.to_pylist():
            packs = [
                (p["padded_length"], p["vision_patches"], p["num_samples"]) for p in row["packs"]
            ]
            if row["memory"] is not None and packs and not any(None in pack for pack in packs):
                steps.append(np.array([[*pack, 1] for pack in packs], np.float64))
                peaks.append(float(row["memory"]))
    if len(steps) < _FEWEST:
        raise OptionError(
            f"--memory-model {folder} has {len(steps)} steps with their memory and all counts,"
            f" {_FEWEST} are needed: log more, on a GPU or with StepLog(memory=…)"
        )
    memory = np.array(peaks)
    scale = np.maximum(np.concatenate(steps).max(axis=0), 1)
    weights = np.ones(4)
    for _ in range(_ROUNDS):
        heaviest = np.array([step[(step @ (weights / scale)).argmax()] for step in steps])
        before, weights = weights, _least_squares(heaviest / scale, memory)
        if np.allclose(before, weights, rtol=1e-9):
            break
    weights /= scale
    estimates = np.array([(step @ weights).max() for step in steps])
    weights[3] += max(0.0, float((memory - estimates).max()))
    return dict(zip(WEIGHTS.values(), weights.tolist(), strict=True))


def _least_squares(terms: Float64s, wanted: Float64s) -> Float64s:
    """Return the weights, none below 0, of the smallest squared error: of all choices of terms
    that have any weight, the best whose least squares are not below 0 (exact, for a few terms)."""
    best, found = math.inf, np.zeros(terms.shape[1])
    for number in range(1, terms.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(terms.shape[1]), number)):
            own = np.linalg.lstsq(terms[:, chosen], wanted, rcond=None)[0]
            error = float(((terms[:, chosen] @ own - wanted) ** 2).sum())
            if (own >= 0).all() and error < best * (1 - 1e-12):
                best, found = error, np.zeros(terms.shape[1])
                found[chosen] = own
    return found


def memory_units(options: Options, padded: Ints, patches: Ints) -> tuple[Int64s, int]:
    """Return what samples take of a pack's limit, and that limit, in units of memory.

    A pack that is padded to a multiple of ``--pad-pack-to`` takes more tokens than its samples:
    either as many as that less one, or, where that is most of a pack, all of them.

    Args:
        options: with a memory model.
        padded: int [n], tokens of each sample in its pack.
        patches: int [n].

    Raises:
        OptionError: nothing is left of the limit.
    """
    model = options.memory
    assert model is not None
    per_token, pad = model.per_token, options.pad_pack_to
    room = model.limit - model.fixed - per_token * options.reserve
    if 2 * pad > options.planned_capacity:
        room, per_token = room - per_token * options.planned_capacity, 0.0
    else:
        room -= per_token * (pad - 1)
    if room <= 0:
        raise OptionError(
            f"--memory {model.limit:,} bytes leaves nothing for samples beside what every pack"
            " takes: raise it, or lower --pad-pack-to"
        )
    unit = room / _UNITS
    taken = per_token * padded + model.per_patch * patches + model.per_sample
    return np.ceil(taken / unit).astype(np.int64), _UNITS
