"""The margin that keeps packs of estimated lengths from overflowing, out of a calibration.

A pack holds samples of estimated lengths e that sum to at most P, the planned capacity; it
overflows if their true lengths a sum to more than C. For any l, k > 0 Chernoff's bound gives

    P(sum a > C) <= E exp(l (sum a - C)) <= exp(k P - l C)   if   E exp(l a - k e) <= 1

for every sample (H. Chernoff, 1952; the exponentials of the pack's samples are then a
supermartingale, so it holds however many samples a pack has). It is at most epsilon for
P = (l C - log(1 / epsilon)) / k, and the best l is searched for.

Why this and not a quantile of simulated packs: it needs no assumption about which samples the
planner puts together. The condition is asked of each *stratum*, the samples of one source and of a
range of lengths, alone; so it holds for packs of any mixture, also for those that hold the worst
source only. It takes errors that grow with the length (characters per token) and errors per sample
(tokens of a template) alike, biased or not.

The expectation is the mean over the calibration's samples, counted as if there had been one more,
as bad as the worst. What N samples do not show cannot be bounded by any method: a
kind of error that one sample in 3 N or fewer has stays unseen more often than not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEFAULT_CHANCE = 0.001
"""Chance of an overflow per pack that a plan accepts unless it is told otherwise."""

_STRATUM = 100  # samples at least
_MAX_STRATA = 4
_STEPS = 48  # tried values of l: around the best one P hardly changes
_STEP = 1.2
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a calibration lets packs be filled."""

    planned_capacity: int
    num_samples: int
    """Samples that were encoded for it."""
    source: str | None
    """The source that asks for it; None where no estimate was too low."""


@dataclass(frozen=True, slots=True)
class _Stratum:
    source: str
    estimated: Floats
    actual: Floats


def calibrated_margin(
    calibration: Mapping[str, Any], capacity: int, chance: float, shift: bool
) -> Margin:
    """The largest planned capacity at which a pack overflows with a chance of at most `chance`.

    Args:
        calibration: of a lengths manifest (FORMAT.md), with at least one sample.
        capacity: tokens a pack may hold.
        chance: 0 < chance < 1.
        shift: whether a sample takes one token less than its length.
    """
    strata = list(_strata(calibration, shift))
    num_samples = sum(len(stratum.actual) for stratum in strata)
    if all((one.actual <= one.estimated).all() for one in strata):
        return Margin(capacity, num_samples, None)
    best, source = 0.0, strata[0].source
    need = -math.log(chance)
    for step in range(_STEPS):
        rate = need * _STEP ** (step + 1) / capacity
        slopes = [_slope(one, rate) for one in strata]
        planned = (rate * capacity - need) / max(slopes)
        if planned > best:
            best, source = planned, strata[slopes.index(max(slopes))].source
    return Margin(max(0, min(capacity, math.floor(best))), num_samples, source)


def _strata(calibration: Mapping[str, Any], shift: bool) -> Iterator[_Stratum]:
    for source in calibration["sources"]:
        estimated = np.asarray(source["estimated"], np.float64) - shift
        actual = np.asarray(source["actual"], np.float64) - shift
        usable = estimated > 0  # a plan drops the others
        estimated, actual = estimated[usable], actual[usable]
        order = np.argsort(estimated, kind="stable")
        number = max(1, min(_MAX_STRATA, len(order) // _STRATUM))
        for chosen in np.array_split(order, number):
            if len(chosen):
                yield _Stratum(source["name"], estimated[chosen], actual[chosen])


def _slope(stratum: _Stratum, rate: float) -> float:
    """The smallest k with ``E exp(rate * a - k * e) <= 1``; the mean falls as k grows."""
    ratios = stratum.actual / stratum.estimated
    low, high = 0.0, rate * float(ratios.max()) + 1e-12  # no term is above 1 at `high`
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _log_mean(stratum, rate, middle) <= 0:
            high = middle
        else:
            low = middle
    return high


def _log_mean(stratum: _Stratum, rate: float, slope: float) -> float:
    exponents = rate * stratum.actual - slope * stratum.estimated
    worst = float(exponents.max())
    total = float(np.exp(exponents - worst).sum()) + 1.0  # one more, as bad as the worst
    return worst + math.log(total) - math.log(len(exponents) + 1)
