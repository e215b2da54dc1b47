"""Linear relaxations of packing, small enough for seconds: few rows stand for thousands of lengths.

`by_knots` restricts the dual prices to be piecewise linear in the length. What restricts the dual
lowers its optimum, so a bound is still a bound, and close: good prices are nearly such functions.
`by_classes` rounds lengths up to the borders of classes, so that each of its patterns fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.pack.counts import Histogram

_SAND = 32  # a sample of at most capacity / _SAND is sand
_PLAN_SAND = 8  # in plans one of up to capacity / _PLAN_SAND, as long as
_SAND_SHARE = 8  # … sand is at most 1 / _SAND_SHARE of all tokens
_MAX_KNAPSACK = 1 << 26  # lengths * capacity of one knapsack program, both counted in units
_MAX_ROOM = 1 << 18  # units of a capacity
_MOST_PER_PACK = 256  # samples; a pattern names each of them
_HARMONIC = 6  # good prices jump where one sample more fits: at capacity / 2, / 3, …


@dataclass(frozen=True, slots=True)
class Relaxation:
    """Rows to cover, and the lengths that patterns may hold.

    Attributes:
        lengths: int64 [n], descending, in tokens.
        units: int64 [n], the same in the knapsack's units, rounded to the safe side.
        counts: int64 [n], samples of each length.
        rows, weights: int64 and float64 [n, w]: what one sample adds to which rows. A row stands
            for lengths longer than the next one's.
        groups: int64 [n]: a round of column generation adds the best pattern of each group.
        diagonal: float64 [m], samples in the pattern that the master starts with in each row.
        sand: tokens in samples that are too short to matter.
        capacity: in tokens.
        room: the capacity in units.
    """

    lengths: Int64s
    units: Int64s
    counts: Int64s
    rows: Int64s
    weights: Float64s
    groups: Int64s
    diagonal: Float64s
    sand: int
    capacity: int
    room: int

    def work_per_round(self) -> int:
        """What one knapsack program costs, in about a nanosecond: each length's doublings."""
        copies = np.maximum(self.room // np.maximum(np.unique(self.units), 1), 1)
        doublings: int = sum(number.bit_length() for number in copies.tolist())
        return doublings * self.room


def by_knots(histogram: Histogram, capacity: int, num_knots: int) -> Relaxation | None:
    """Prices linear between about `num_knots` quantiles, their complements and capacity / 2, / 3 …

    All lengths are knots, and none is sand, if they are few and not too short. None is returned
    where all is sand. Any solution's dual prices prove a lower bound.
    """
    exact = _is_small(histogram, capacity, num_knots)
    long, sand = _split(histogram, 0 if exact else capacity // _SAND)
    if len(long.lengths) == 0:
        return None
    knots = long.lengths[::-1] if exact else _knots(long, capacity, num_knots)
    left = np.searchsorted(knots, long.lengths, side="right") - 1  # the knot at or below
    right = np.minimum(left + 1, len(knots) - 1)
    share = (long.lengths - knots[left]) / np.maximum(knots[right] - knots[left], 1)
    rows = np.stack([left, right], axis=1)
    weights = np.stack([1.0 - share, share], axis=1)
    needed = np.unique(rows[weights > 0])[::-1]  # the other knots have no sample near them
    row_of = np.zeros(len(knots), np.int64)
    row_of[needed] = np.arange(len(needed))
    unit = _unit(long, capacity)
    return Relaxation(
        lengths=long.lengths,
        units=long.lengths // unit,
        counts=long.counts,
        rows=row_of[rows],
        weights=weights,
        groups=left,
        diagonal=(capacity // knots[needed]).astype(np.float64),
        sand=sand,
        capacity=capacity,
        room=capacity // unit,
    )


def by_classes(histogram: Histogram, capacity: int, num_classes: int) -> Relaxation | None:
    """Lengths rounded up to the borders of at most `num_classes` classes: patterns of them fit.

    All lengths are borders, and none is sand, if they are few and not too short. None is returned
    where all is sand.
    """
    exact = _is_small(histogram, capacity, num_classes)
    long, sand = _split(histogram, 0 if exact else _plan_sand(histogram, capacity))
    if len(long.lengths) == 0:
        return None
    first, units, borders, room = (
        (np.arange(len(long.lengths)), long.lengths, long.lengths, capacity)
        if exact
        else _grid_classes(long, capacity, num_classes)
    )
    num = len(borders)
    return Relaxation(
        lengths=borders,
        units=units,
        counts=np.add.reduceat(long.counts, first),
        rows=np.arange(num)[:, None],
        weights=np.ones((num, 1)),
        groups=np.arange(num),
        diagonal=np.maximum(room // units, 1).astype(np.float64),
        sand=sand,
        capacity=capacity,
        room=room,
    )


def _is_small(histogram: Histogram, capacity: int, most: int) -> bool:
    """Whether every length can have a row, and every sample a slot in a pattern."""
    return len(histogram.lengths) == 0 or (
        len(histogram.lengths) <= most
        and int(histogram.lengths[-1]) * _MOST_PER_PACK >= capacity
        and _unit(histogram, capacity) == 1
    )


def _split(histogram: Histogram, longest_sand: int) -> tuple[Histogram, int]:
    """The samples above `longest_sand`, and the tokens of the others."""
    num = int(np.searchsorted(-histogram.lengths, -longest_sand, side="left"))
    sand = int(histogram.lengths[num:] @ histogram.counts[num:])
    return Histogram(histogram.lengths[:num], histogram.counts[:num]), sand


def _unit(long: Histogram, capacity: int) -> int:
    """Tokens in a unit of the knapsack: 1, unless that makes the program too large."""
    most = max(_MAX_KNAPSACK // max(len(long.lengths), 1), math.isqrt(_MAX_KNAPSACK))
    return -(-capacity // min(most, _MAX_ROOM))


def _plan_sand(histogram: Histogram, capacity: int) -> int:
    """The longest length that a plan treats as sand."""
    tokens = np.cumsum((histogram.lengths * histogram.counts)[::-1])
    few = int(np.count_nonzero(tokens <= tokens[-1] // _SAND_SHARE))
    longest = int(histogram.lengths[-few]) if few else 0
    return max(min(longest, capacity // _PLAN_SAND), capacity // _SAND)


def _knots(long: Histogram, capacity: int, num_knots: int) -> Int64s:
    """Ascending lengths between which prices are linear; the first is the shortest length.

    Quantiles, so that common lengths have their own; with each one's complement to the capacity,
    for in a pack of two the price of one is what the other leaves.
    """
    before = np.cumsum(long.counts) - long.counts
    quantile = before * num_knots // long.num_samples
    picked = long.lengths[np.diff(quantile, prepend=-1) != 0]
    harmonic = capacity // np.arange(2, _HARMONIC + 1)
    ends = long.lengths[[0, -1]]
    knots = np.unique(np.concatenate([picked, capacity - picked, harmonic, harmonic + 1, ends]))
    inside: Int64s = knots[(knots >= ends[1]) & (knots <= ends[0])]
    return inside


def _grid_classes(
    long: Histogram, capacity: int, num_classes: int
) -> tuple[Int64s, Int64s, Int64s, int]:
    """Classes on the finest grid that makes at most `num_classes` of them.

    The capacity is `room` equal cells: what fits counted in cells fits in tokens, and borders add
    up to the capacity without a gap. Neighbouring cells with few samples are one class.

    Returns the index of each class's longest length, its border in cells and in tokens, and `room`.
    """
    for room in (fifths << shift for shift in range(15, -1, -1) for fifths in (7, 6, 5, 4)):
        if room >= 2 * capacity:
            continue
        room = min(room, capacity)
        cells = -(-long.lengths * room // capacity)
        first = np.flatnonzero(np.diff(cells, prepend=-1))
        before = (np.cumsum(long.counts) - long.counts)[first]
        share = before * (2 * num_classes) // long.num_samples
        first = first[np.diff(share, prepend=-1) != 0]
        if len(first) <= num_classes:
            return first, cells[first], np.asarray(cells[first] * capacity // room), room
    raise AssertionError("a grid of four cells has at most four classes")
