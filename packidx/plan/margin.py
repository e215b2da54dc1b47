"""The margin that keeps packs of estimated lengths from overflowing, out of a calibration.

A pack of estimated lengths e overflows if its true lengths a sum to more than the capacity C. By
Chernoff's bound (H. Chernoff, 1952), for every l > 0

    P(sum a > C) <= exp(sum psi(e) - l (C + 1)),    psi(e) = log E exp(l a)

with the sum over the pack's own samples, whatever their number and mixture. The planned capacity is
the largest one at which the mean of these bounds over the packs that the planner really makes of
these lengths is at most the stated chance. So the composition is the plan's, not a random draw's:
best fit fills packs with equals, and hundreds of short samples in one pack, each a few template
tokens longer than estimated, are what a margin for the average pack misses.

psi comes from the calibration, source by source and range of lengths by range of lengths (a
*stratum*; a length that many samples have is one by itself, for best fit packs equals together).
Within one, errors may be added (tokens of a template) or grow with the length (characters per
token): both are computed and the larger psi is taken. The expectation is the mean over the
stratum's samples as if there had been one more, as bad as the worst. What N samples do not show no
method can bound: a kind of error that fewer than 3 in N samples have may not be among them (at
3 / N it is missed one time in twenty), and one that lengths no sample was drawn of have by
themselves is averaged with that of their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Float64s, Int64s
from packidx.format.lengths import CalibratedSource, Calibration
from packidx.hashing import derive_key
from packidx.pack.solve import Problem, solve
from packidx.permutation import permutation
from packidx.plan.options.plan_options import PlanOptions
from packidx.plan.options.resolved import Margin, overflow_chance, planned_share

_STRATUM = 50  # calibrated samples of a range of lengths, if there are as many
_ALONE = 15  # calibrated samples of one length that are looked at by themselves
_MAX_SAMPLES = 1 << 18  # of the plan: its composition shows in so many
_GRID = 48  # lengths at which psi is computed; between them it is interpolated
_FIRST, _STEP, _LAST = 4.0, 1.6, 16.0  # l: from _FIRST / capacity to _LAST
_RESOLUTION = 512  # the planned capacity is found to this share of the capacity


@dataclass(frozen=True, slots=True)
class _Stratum:
    """Calibrated samples of one source and range of lengths."""

    estimated: Float64s
    actual: Float64s
    low: float
    """Shortest length of the range, the next stratum's is one past its longest."""

    def log_moments(self, rates: Float64s, lengths: Float64s) -> Float64s:
        """psi: ``[rates, lengths]``."""
        added = _log_mean(rates[:, None] * (self.actual - self.estimated))
        psi = rates[:, None] * lengths + added[:, None]
        ratios = self.actual / self.estimated
        for number, rate in enumerate(rates):
            grown = _log_mean(rate * lengths[:, None] * ratios)
            psi[number] = np.maximum(psi[number], grown)
        return psi


def calibrated_margin(
    calibration: Calibration,
    lengths: Int64s,
    sources: NDArray[Any],
    capacity: int,
    chance: float,
    shift: bool = False,
    strategy: str = "bfd",
) -> Margin:
    """The largest planned capacity at which a pack overflows with a chance of at most `chance`.

    Args:
        calibration: of a lengths manifest (FORMAT.md), with at least one sample.
        lengths: int64 [n], the estimated lengths that are to be packed.
        sources: [n], the name of each one's source.
        capacity: tokens a pack may hold.
        chance: 0 < chance < 1.
        shift: whether a sample takes one token less than its length.
        strategy: of the plan.
    """
    strata = {source.name: _strata(source, shift) for source in calibration.sources}
    strata = {name: ranges for name, ranges in strata.items() if ranges}
    known = np.isin(sources, list(strata)) & (lengths - shift > 0) & (lengths - shift <= capacity)
    lengths, sources = lengths[known] - shift, sources[known]
    num_samples = calibration.num_samples
    every = [stratum for ranges in strata.values() for stratum in ranges]
    if all((stratum.actual <= stratum.estimated).all() for stratum in every):
        return Margin(capacity, num_samples, None)
    if len(lengths) > _MAX_SAMPLES:
        chosen = permutation(len(lengths), derive_key(0, "margin"))[:_MAX_SAMPLES]
        lengths, sources = lengths[chosen], sources[chosen]
    number = math.ceil(math.log(_LAST * capacity / _FIRST, _STEP)) + 1
    rates = np.asarray(_FIRST / capacity * _STEP ** np.arange(max(1, number)), np.float64)
    moments = _moments(strata, lengths, sources, rates)
    low, high = 0, capacity + 1  # what is safe, and what is not
    while high - low > max(1, capacity // _RESOLUTION):
        middle = (low + high) // 2
        if _overflows(lengths, moments, rates, middle, capacity, strategy) <= chance:
            low = middle
        else:
            high = middle
    return Margin(low, num_samples, _heaviest(moments, rates, lengths, sources))


def margin_of(
    calibration: Calibration | None,
    asked: PlanOptions,
    weakest_method: str,
    usable: Callable[[], tuple[Int64s, NDArray[Any]]],
) -> Margin | None:
    """The margin that a calibration asks for; None where another one holds.

    Args:
        calibration: of the lengths manifest, if it has one.
        asked, weakest_method: as of `overflow_chance`.
        usable: gives the lengths that are to be packed, and the name of each one's source.

    Raises:
        OptionError: a chance is asked for and there is nothing to compute a margin from.
    """
    known = calibration is not None and calibration.num_samples > 0
    chance = overflow_chance(asked, weakest_method, known)
    if chance is None or calibration is None:
        return None
    margin = calibrated_margin(
        calibration, *usable(), asked.capacity, chance, asked.shift, asked.strategy
    )
    default = math.floor(planned_share(asked, weakest_method) * asked.capacity)
    for source in calibration.sources:  # of one that nobody has encoded, nothing is known
        unknown = source.num_usable and not source.num_samples
        if unknown and default < margin.planned_capacity:
            margin = replace(margin, planned_capacity=default, source=source.name)
    return margin


def _overflows(
    lengths: Int64s, moments: Float64s, rates: Float64s, planned: int, capacity: int, strategy: str
) -> float:
    """Mean over the packs planned for `planned` tokens of the bound of their overflow."""
    fitting = np.flatnonzero(lengths <= planned)
    if not len(fitting):
        return 0.0
    problem = Problem(lengths[fitting], planned, {})
    slots = solve(problem, strategy, 0).slots(problem, 0)
    items = fitting[slots.item[np.argsort(slots.pack, kind="stable")]]
    sizes = np.bincount(slots.pack, minlength=slots.num_packs)
    sums = np.add.reduceat(moments[:, items], np.cumsum(sizes) - sizes, axis=1)
    bounds = (sums - rates[:, None] * (capacity + 1)).min(axis=0)
    return float(np.exp(np.minimum(bounds, 0.0)).mean())


def _moments(
    strata: Mapping[str, list[_Stratum]], lengths: Int64s, sources: NDArray[Any], rates: Float64s
) -> Float64s:
    """psi of every sample: ``[rates, n]``."""
    moments = np.empty((len(rates), len(lengths)))
    for name, parts in strata.items():
        mine = np.flatnonzero(sources == name)
        number = np.searchsorted([part.low for part in parts], lengths[mine], "right") - 1
        for at, part in enumerate(parts):
            rows = mine[number == at]
            if not len(rows):
                continue
            own = lengths[rows].astype(np.float64)
            grid = np.unique(np.geomspace(own.min(), own.max(), _GRID))
            table = part.log_moments(rates, grid)
            for rate in range(len(rates)):
                moments[rate, rows] = np.interp(own, grid, table[rate])
    return moments


def _strata(source: CalibratedSource, shift: bool) -> list[_Stratum]:
    """A source's strata by ascending length; the first and the last are open."""
    estimated = np.asarray(source.estimated, np.float64) - shift
    actual = np.asarray(source.actual, np.float64) - shift
    usable = estimated > 0  # a plan drops the others
    estimated, actual = estimated[usable], actual[usable]
    if not usable.any():
        return []
    order = np.argsort(estimated, kind="stable")
    estimated, actual = estimated[order], actual[order]
    cuts = _cuts(estimated)
    return [
        _Stratum(
            estimated[first:end], actual[first:end], float(estimated[first]) if first else -math.inf
        )
        for first, end in zip(cuts, [*cuts[1:], len(estimated)], strict=True)
    ]


def _cuts(estimated: Float64s) -> list[int]:
    """Where strata of ascending lengths begin: no length is in two, and one that `_ALONE` samples
    have is a stratum by itself, for best fit puts equals together."""
    firsts = [0, *(np.flatnonzero(np.diff(estimated)) + 1).tolist()]
    cuts = [0]
    previous = 0
    for first, end in zip(firsts, [*firsts[1:], len(estimated)], strict=True):
        alone = end - first >= _ALONE
        if first and (alone or first - cuts[-1] >= _STRATUM or previous >= _ALONE):
            cuts.append(first)
        previous = end - first
    return cuts


def _log_mean(exponents: Float64s) -> Float64s:
    """Log of the mean exponential over the last axis, one more as large as the largest."""
    worst = exponents.max(axis=-1)
    total = np.exp(exponents - worst[..., None]).sum(axis=-1) + 1.0
    log_mean: Float64s = worst + np.log(total) - math.log(exponents.shape[-1] + 1)
    return log_mean


def _heaviest(
    moments: Float64s, rates: Float64s, lengths: Int64s, sources: NDArray[Any]
) -> str | None:
    """The source with the largest psi per estimated token, at a rate as overflows take it."""
    middle = len(rates) // 3
    per_token = moments[middle] / (rates[middle] * lengths)
    names = np.unique(sources)
    means = [float(per_token[sources == name].mean()) for name in names]
    return str(names[int(np.argmax(means))]) if len(names) else None
