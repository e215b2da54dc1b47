"""The `lp` strategy: column generation over length classes, and the lower bound of its dual.

Gilmore and Gomory (1961, "A linear programming approach to the cutting-stock problem"): a plan is a
choice of patterns (what a pack holds), the linear relaxation over all patterns is solved with those
that a knapsack program finds worth adding, and its dual prices are a lower bound. Two relaxations
are solved, both small enough for seconds:

- The **bound**: prices restricted to be piecewise linear in the length, a restriction of the dual,
  hence a lower bound; the knapsack runs over the real lengths, and by its exact integer
  optimum m the prices are divided (Farley 1990): ⌈Σ price / m⌉ holds whatever the simplex did.
- The **plan**: classes of lengths, each as long as its mean, so that patterns fit on average;
  amounts rounded, and the slots filled so that most packs fit (`packidx.packing.strategies.lots`).
  Where that stays above the bound, as on lengths in spikes, once more with each class as long as
  its longest sample, so that every pattern fits.

Short samples are sand: any room holds them, so one price per token does, and best fit places them.
All arithmetic is integer or elementwise IEEE float64 (`packidx.packing.strategies.simplex`): the
same plan on any machine. Effort is limited by counting operations, never seconds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.packing.counts import Histogram, PackRuns, volume_bound
from packidx.packing.strategies.decreasing import best_fit_decreasing
from packidx.packing.strategies.lots import fill_patterns
from packidx.packing.strategies.simplex import Master

_SAND = 32  # a sample of at most capacity / _SAND is sand
_PLAN_SAND = 8  # in plans one of up to capacity / _PLAN_SAND, as long as
_SAND_SHARE = 8  # … sand is at most 1 / _SAND_SHARE of all tokens
_MAX_KNAPSACK = 1 << 26  # lengths * capacity of one knapsack program, both counted in units
_MAX_ROOM = 1 << 18  # units of a capacity
_MOST_PER_PACK = 256  # samples; a pattern names each of them
_LOWER = 20  # classes lie lower by half a token in … of it
_RARE = 16  # classes have at least 1 / _RARE of an equal share of the samples
_MEAN_UNITS = 1 << 14  # a mean is counted in at least so many units of the capacity
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
        """Return the cost of one knapsack program, in units of about a nanosecond."""
        copies = np.maximum(self.room // np.maximum(np.unique(self.units), 1), 1)
        doublings: int = sum(number.bit_length() for number in copies.tolist())
        return doublings * self.room


def by_knots(histogram: Histogram, capacity: int, num_knots: int) -> Relaxation | None:
    """Prices linear between about `num_knots` quantiles, their complements and capacity / 2, / 3 …

    All lengths are knots, and none is sand, if they are few and not too short. None is returned
    where all is sand. Any solution's dual prices prove a lower bound.
    """
    exact = _is_small(histogram, capacity, num_knots)
    long, sand = _split_sand(histogram, 0 if exact else capacity // _SAND)
    if len(long.lengths) == 0:
        return None
    knots = long.lengths[::-1] if exact else _price_knots(long, capacity, num_knots)
    left = np.searchsorted(knots, long.lengths, side="right") - 1  # the knot at or below
    right = np.minimum(left + 1, len(knots) - 1)
    share = (long.lengths - knots[left]) / np.maximum(knots[right] - knots[left], 1)
    rows = np.stack([left, right], axis=1)
    weights = np.stack([1.0 - share, share], axis=1)
    needed = np.unique(rows[weights > 0])[::-1]  # the other knots have no sample near them
    row_of = np.zeros(len(knots), np.int64)
    row_of[needed] = np.arange(len(needed))
    unit = _knapsack_unit(long, capacity)
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


def by_classes(
    histogram: Histogram, capacity: int, num_classes: int, by_mean: bool = True
) -> tuple[Relaxation, Int64s] | None:
    """Return at most `num_classes` classes of lengths, each as long as its mean or its longest
    sample; and how many samples are longer than each class, and than sand, int64 [n + 1].

    All lengths are classes, and none is sand, if they are few and not too short. None is returned
    where all is sand.
    """
    exact = _is_small(histogram, capacity, num_classes)
    long, sand = _split_sand(histogram, 0 if exact else _plan_sand(histogram, capacity))
    if len(long.lengths) == 0:
        return None
    if exact:
        cells, edges = capacity, np.concatenate([[0], np.cumsum(long.counts)])
    else:
        cells, edges = _class_edges(long, capacity, num_classes, by_mean)
    room = cells
    if by_mean and not exact:
        room = min(capacity * max(1, _MEAN_UNITS // capacity), _MAX_ROOM)
    units = _class_units(long, capacity, cells, edges, room, by_mean)
    num = len(units)
    relaxation = Relaxation(
        lengths=units * capacity // room,
        units=units,
        counts=np.diff(edges),
        rows=np.arange(num)[:, None],
        weights=np.ones((num, 1)),
        groups=np.arange(num),
        diagonal=np.maximum(room // units, 1).astype(np.float64),
        sand=sand,
        capacity=capacity,
        room=room,
    )
    return relaxation, edges


def _class_edges(
    long: Histogram, capacity: int, num_classes: int, by_mean: bool
) -> tuple[int, Int64s]:
    """Classes on the finest grid that makes at most `num_classes` of them.

    A class has the samples up to a multiple of a cell, or, if means count, those around it, half a
    cell to both sides: so sums meet the capacity, a multiple too. A length that two classes share
    counts as spread evenly over a token. All lies a little lower, so that means are hardly ever
    above the multiple, which would keep out the patterns that fill a pack. Neighbouring cells with
    few samples are one class.

    Returns the number of cells in the capacity, and the edges as `by_classes` does.
    """
    num = long.num_samples
    ascending = long.lengths[::-1]
    shorter = np.concatenate([[0], np.cumsum(long.counts[::-1])])
    grids = {min(fifths << shift, capacity) for shift in range(16) for fifths in (4, 5, 6, 7)}
    for cells in sorted(grids, reverse=True):
        first, last = (int(long.lengths[at]) * cells // capacity for at in (0, -1))
        multiple = np.arange(first + 2, last - 2, -1)
        if by_mean:
            border = (2 * multiple + 1) * capacity + cells - (capacity - cells) // _LOWER
            length, share = np.divmod(border, 2 * cells)
        else:
            length, share = multiple * capacity // cells + 1, np.zeros_like(multiple)
        low, high = (np.searchsorted(ascending, length, side) for side in ("left", "right"))
        below = shorter[low] + (shorter[high] - shorter[low]) * share // (2 * cells)
        edges = np.unique(num - below[below > 0])
        rare = (_RARE if by_mean else 2) * num_classes
        edges = edges[np.diff(edges * rare // num, prepend=-1) != 0]
        if len(edges) <= num_classes:
            break
    return cells, np.append(edges, num)


def _class_units(
    long: Histogram, capacity: int, cells: int, edges: Int64s, room: int, by_mean: bool
) -> Int64s:
    """The length of each class in units, rounded up: its longest, or the mean of its samples.

    It is no shorter than half a cell below its longest sample: where cells are one class, the few
    long ones find no short ones to go with.
    """
    ends = np.cumsum(long.counts)
    at = np.minimum(np.searchsorted(ends, edges, "right"), len(ends) - 1)
    tokens = np.cumsum(long.lengths * long.counts)[at] - (ends[at] - edges) * long.lengths[at]
    count, tokens = np.diff(edges), np.diff(tokens)
    mean = tokens // count * room + tokens % count * room // count
    half_below = (2 * long.lengths[at[:-1]] - 1 - capacity // cells) * room // 2
    longest = long.lengths[at[:-1]] * room
    units: Int64s = -(-(np.maximum(mean, half_below) if by_mean else longest) // capacity)
    return units.clip(1, room)


def _is_small(histogram: Histogram, capacity: int, most: int) -> bool:
    """Return whether every length can have a row, and every sample a slot in a pattern."""
    return len(histogram.lengths) == 0 or (
        len(histogram.lengths) <= most
        and int(histogram.lengths[-1]) * _MOST_PER_PACK >= capacity
        and _knapsack_unit(histogram, capacity) == 1
    )


def _split_sand(histogram: Histogram, longest_sand: int) -> tuple[Histogram, int]:
    """The samples above `longest_sand`, and the tokens of the others."""
    num = int(np.searchsorted(-histogram.lengths, -longest_sand, side="left"))
    sand = int(histogram.lengths[num:] @ histogram.counts[num:])
    return Histogram(histogram.lengths[:num], histogram.counts[:num]), sand


def _knapsack_unit(long: Histogram, capacity: int) -> int:
    """Tokens in a unit of the knapsack: 1, unless that makes the program too large."""
    most = max(_MAX_KNAPSACK // max(len(long.lengths), 1), math.isqrt(_MAX_KNAPSACK))
    return -(-capacity // min(most, _MAX_ROOM))


def _plan_sand(histogram: Histogram, capacity: int) -> int:
    """The longest length that a plan treats as sand."""
    tokens = np.cumsum((histogram.lengths * histogram.counts)[::-1])
    few = int(np.count_nonzero(tokens <= tokens[-1] // _SAND_SHARE))
    longest = int(histogram.lengths[-few]) if few else 0
    return max(min(longest, capacity // _PLAN_SAND), capacity // _SAND)


def _price_knots(long: Histogram, capacity: int, num_knots: int) -> Int64s:
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


@dataclass(frozen=True, slots=True)
class Knapsack:
    """The solved program.

    Attributes:
        lengths: int64 [n], positive, descending; equal ones may differ in value.
        values: int64 [n], what one sample of a length is worth; it may be negative.
        best: int64 [capacity + 1], the most that samples of at most half the capacity are worth
            in a room of c tokens.
    """

    lengths: Int64s
    values: Int64s
    best: Int64s

    @classmethod
    def solve(cls, lengths: Int64s, values: Int64s, capacity: int) -> Knapsack:
        """Solve for every room up to `capacity`, of which no length may be longer."""
        best = np.zeros(capacity + 1, np.int64)
        with_more = np.empty_like(best)
        ascending, worth = lengths[::-1], values[::-1]
        shorter_worth = np.concatenate([[0], np.maximum.accumulate(worth)[:-1]])
        useful = (worth > np.maximum(shorter_worth, 0)) & (2 * ascending <= capacity)
        ascending, worth = ascending[useful], worth[useful]
        last = np.diff(ascending, append=capacity + 1) > 0  # of equal lengths the most valuable
        for length, value in zip(ascending[last].tolist(), worth[last].tolist(), strict=True):
            copies = 1  # 1, 2, 4 … more of the same: every number of copies is a sum of these
            while copies * length <= capacity:
                rooms = capacity + 1 - copies * length
                np.add(best[:rooms], copies * value, out=with_more[:rooms])
                np.maximum(best[-rooms:], with_more[:rooms], out=best[-rooms:])
                copies *= 2
        return cls(lengths, values, best)

    def best_with(self) -> Int64s:
        """int64 [n]: for each length, the value of the best pack of it and samples up to half.

        The largest of these, or `best[-1]` if that is more, is the most that any pack is worth.
        """
        return self.values + self.best[len(self.best) - 1 - self.lengths]

    def packs_with(self, starts: Int64s) -> Int64s:
        """The best packs that hold given lengths, as indices into `lengths`, int64 [s, most].

        `starts`: int64 [s], the index of one length of each pack. A row is padded with -1.
        """
        capacity = len(self.best) - 1
        rooms = capacity - self.lengths[starts]
        half = int(np.searchsorted(-self.lengths, -(capacity // 2), side="left"))
        lengths, values = self.lengths[half:], self.values[half:]
        columns = [starts]
        while (active := np.flatnonzero(self.best[rooms] > 0)).size:
            left = rooms[active, None] - lengths
            attains = self.best[np.maximum(left, 0)] + values == self.best[rooms[active], None]
            pick = (attains & (left >= 0)).argmax(axis=1)  # the longest such sample
            column = np.full(len(starts), -1)
            column[active] = half + pick
            rooms[active] -= lengths[pick]
            columns.append(column)
        return np.stack(columns, axis=1)


_ONE = 1 << 40  # the price of a whole pack, in integers
_KNOTS = (32, 128)  # of the bound's prices: a quick first round, then a finer one
# Rounds of the plan: how many classes of lengths, and whether these count as long as their mean.
_CLASSES = ((128, True), (128, False), (512, False))
_ENOUGH = 0.001  # above the bound: one round will do, unless all lengths can be classes
_HOPELESS = 0.004  # above the plan at hand: four times as many classes do not save as much
_ROUND_UP = (0.8, 0.6, 0.52)  # a pattern's amount is rounded up from this fraction on
_TOLERANCE = 1e-4  # how far above a pack's price a pattern may stay
_MAX_ROUNDS = 100
_MAX_WORK = 4_000_000_000  # about a nanosecond each: what one relaxation may cost
# Where another plan is at hand, and at most this share of its packs can be gained, it may cost as
# much less: on image tiles 0.2 % are left, which no relaxation finds.
_WORTH_ALL = 0.03


class LinearPlan(NamedTuple):
    """The result of column generation."""

    runs: PackRuns
    bound: int
    """No plan needs fewer packs; proven in integers."""


def linear_plan(histogram: Histogram, capacity: int, *, target: int | None = None) -> LinearPlan:
    """Plan by column generation; never more packs than best-fit-decreasing.

    `target` is the number of packs of a plan that the caller has: once the bound proves that no
    plan needs fewer, the search ends and best fit's plan is returned; and the less is left to gain,
    the less the search may cost.
    """
    best = best_fit_decreasing(histogram, capacity)  # checks the lengths
    goal = best.total_packs if target is None else min(target, best.total_packs)
    bound = volume_bound(histogram, capacity)

    def work() -> int:
        share = 1.0 if target is None else (goal / bound - 1) / _WORTH_ALL
        return int(_MAX_WORK * min(1.0, share))

    bound = _best_bound(histogram, capacity, goal, work())
    enough = bound * (1 + (_ENOUGH if len(histogram.lengths) > _CLASSES[-1][0] else 0.0))
    for num_classes, by_mean in _CLASSES:
        if (bound if by_mean else enough) >= min(goal, best.total_packs):
            break
        most_work = work() * num_classes // _CLASSES[-1][0]
        runs = _round_plan(histogram, capacity, num_classes, by_mean, most_work)
        best = min(best, runs, key=attrgetter("total_packs"))
        if not by_mean and runs.total_packs > goal * (1 + _HOPELESS):
            break
    return LinearPlan(best, bound)


def _best_bound(histogram: Histogram, capacity: int, goal: int, most_work: int) -> int:
    simple = volume_bound(histogram, capacity)
    bound = simple
    for num_knots in _KNOTS:
        relaxation = by_knots(histogram, capacity, num_knots)
        if relaxation is None or bound >= goal:
            break
        bound = max(bound, _start_master(relaxation).solve(goal, most_work).bound)
        if bound == simple:  # prices proportional to the length are best: more knots find them too
            break
    return bound


def _round_plan(
    histogram: Histogram,
    capacity: int,
    num_classes: int,
    by_mean: bool = True,
    most_work: int = _MAX_WORK,
) -> PackRuns:
    classes = by_classes(histogram, capacity, num_classes, by_mean)
    if classes is None:
        return best_fit_decreasing(histogram, capacity)
    relaxation, edges = classes
    solved = _start_master(relaxation).solve(histogram.num_samples + 1, most_work)
    patterns, amounts = solved.patterns()
    rounded = (np.floor(amounts + (1.0 - fraction)).astype(np.int64) for fraction in _ROUND_UP)
    fill = functools.partial(fill_patterns, histogram, capacity, edges, patterns)
    return min(map(fill, rounded), key=attrgetter("total_packs"))


@dataclass(slots=True)
class _Generation:
    """A relaxation that is solved by column generation."""

    _relaxation: Relaxation
    _master: Master
    _num_empty: int
    """Columns of the first master that hold no slot."""
    _added: list[Int64s] = field(default_factory=list)
    """The patterns of every round."""
    bound: int = 0
    """⌈the best certified value⌉: of the relaxation's samples, no fewer packs hold all."""

    def solve(self, goal: int, most_work: int = _MAX_WORK) -> _Generation:
        """Generate columns until the bound is `goal`, none is worth adding, or `most_work`, about
        so many nanoseconds, is done."""
        work = 0
        for _ in range(_MAX_ROUNDS):
            patterns = self._price_patterns()
            if len(patterns) == 0 or self.bound >= goal or work >= most_work:
                break
            self._add_patterns(patterns)
            each = self._master.work_per_pivot()
            before = self._master.num_pivots
            self._master.solve((most_work - work) // each + 1)
            work += (self._master.num_pivots - before) * each + self._relaxation.work_per_round()
        return self

    def _price_patterns(self) -> Int64s:
        """Raise the bound; return patterns worth adding, int64 [p, most], padded with -1."""
        r = self._relaxation
        prices = np.floor(np.maximum(self._master.prices, 0.0) * _ONE)
        per_token = int(prices[-1]) // r.capacity if r.sand else 0
        worth = np.zeros(len(r.lengths))
        for slot in range(r.rows.shape[1]):
            worth += r.weights[:, slot] * prices[r.rows[:, slot]]
        values = np.floor(worth).astype(np.int64)
        # What a pattern leaves free, sand can have at its price.
        knapsack = Knapsack.solve(r.units, values - per_token * r.lengths, r.room)
        packs = knapsack.best_with() + per_token * r.capacity
        most = max(int(packs.max()), int(knapsack.best[-1]) + per_token * r.capacity)
        total = sum(v * n for v, n in zip(values.tolist(), r.counts.tolist(), strict=True))
        self.bound = max(self.bound, -(-(total + per_token * r.sand) // most))
        if most <= _ONE * (1 + _TOLERANCE):
            return np.empty((0, 1), np.int64)
        best_first = np.lexsort((-packs, r.groups))
        starts = best_first[np.diff(r.groups[best_first], prepend=-1) != 0]
        return knapsack.packs_with(starts[packs[starts] > _ONE * (1 + _TOLERANCE / 4)])

    def _add_patterns(self, patterns: Int64s) -> None:
        r = self._relaxation
        held = patterns >= 0
        rows = np.where(held[:, :, None], r.rows[patterns], 0).reshape(len(patterns), -1)
        weights = np.where(held[:, :, None], r.weights[patterns], 0.0).reshape(len(patterns), -1)
        if r.sand:
            free = r.capacity - np.where(held, r.lengths[patterns], 0).sum(axis=1)
            rows = np.column_stack([rows, np.full(len(patterns), len(r.diagonal))])
            weights = np.column_stack([weights, free / r.capacity])
        self._master.add(rows, weights, np.ones(len(patterns)))
        self._added.append(patterns)

    def patterns(self) -> tuple[Int64s, Float64s]:
        """The solution: indices into the relaxation's lengths, int64 [p, most], and amounts."""
        basis, amounts = self._master.solution()
        num_rows = len(self._relaxation.diagonal)
        width = max([int(self._relaxation.diagonal.max())] + [p.shape[1] for p in self._added])
        first = np.full((num_rows, width), -1)  # the columns that the master starts with
        copies = np.arange(width) < self._relaxation.diagonal[:, None]
        first[copies] = np.nonzero(copies)[0]
        rest = [
            np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in self._added
        ]
        none = np.full((self._num_empty, width), -1)
        return np.concatenate([first, none, *rest])[basis], amounts


def _start_master(relaxation: Relaxation) -> _Generation:
    """Return a master with a pattern of equals for each row, and columns without slots.

    These are an empty pack (for sand) and, at no cost, a slot given to the next shorter row: that
    makes prices rise with the length, which speeds convergence up (Ben Amor, Desrosiers and Valério
    de Carvalho 2006, "Dual-optimal inequalities for stabilized column generation").
    """
    num_rows = len(relaxation.diagonal)
    demand = np.zeros(num_rows)
    for slot in range(relaxation.rows.shape[1]):
        np.add.at(demand, relaxation.rows[:, slot], relaxation.weights[:, slot] * relaxation.counts)
    diagonal = relaxation.diagonal
    if relaxation.sand:
        demand = np.append(demand, relaxation.sand / relaxation.capacity)
        diagonal = np.append(diagonal, 1.0)
    master = Master.starting(demand, diagonal)
    longer = np.arange(num_rows - 1)
    entries = np.tile([-1.0, 1.0], (num_rows - 1, 1))
    master.add(np.stack([longer, longer + 1], axis=1), entries, np.zeros(num_rows - 1))
    return _Generation(relaxation, master, len(demand) - 1)
