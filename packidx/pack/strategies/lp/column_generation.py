"""The `lp` strategy: column generation over length classes, and the lower bound of its dual.

Gilmore and Gomory (1961, "A linear programming approach to the cutting-stock problem"): a plan is a
choice of patterns (what a pack holds), the linear relaxation over all patterns is solved with those
that a knapsack program finds worth adding, and its dual prices are a lower bound. Two relaxations
are solved, both small enough for seconds:

- The **bound**: prices restricted to be piecewise linear in the length, a restriction of the dual,
  hence a lower bound; the knapsack runs over the real lengths, and by its exact integer
  optimum m the prices are divided (Farley 1990): ⌈Σ price / m⌉ holds whatever the simplex did.
- The **plan**: lengths rounded up to the borders of classes, so that every pattern fits; amounts
  rounded, the slots dealt to real samples, the rest by best fit
  (`packidx.pack.strategies.lp.dealing`).

Short samples are sand: any room holds them, so one price per token does, and best fit places them.
All arithmetic is integer or elementwise IEEE float64 (`packidx.pack.strategies.lp.simplex`): the
same plan on any machine. Effort is limited by counting operations, never seconds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.pack.bounds import volume_bound
from packidx.pack.counts import Histogram, PackRuns
from packidx.pack.strategies.decreasing import best_fit_decreasing
from packidx.pack.strategies.lp.dealing import fill_patterns
from packidx.pack.strategies.lp.knapsack import Knapsack
from packidx.pack.strategies.lp.relaxation import Relaxation, by_classes, by_knots
from packidx.pack.strategies.lp.simplex import Master

_ONE = 1 << 40  # the price of a whole pack, in integers
_KNOTS = (32, 128)  # of the bound's prices: a quick first round, then a finer one
_CLASSES = (128, 512)  # of the plan's lengths: few samples and many
_ROUND_UP = (0.8, 0.7, 0.6)  # a pattern's amount is rounded up from this fraction on
_TOLERANCE = 1e-4  # how far above a pack's price a pattern may stay
_MAX_ROUNDS = 100
_MAX_WORK = 4_000_000_000  # about a nanosecond each: what one relaxation may cost


class LinearPlan(NamedTuple):
    """What column generation found."""

    runs: PackRuns
    bound: int
    """No plan needs fewer packs; proven in integers."""


def linear_plan(histogram: Histogram, capacity: int, *, target: int | None = None) -> LinearPlan:
    """Plan by column generation; never more packs than best-fit-decreasing.

    `target` is the number of packs of a plan that the caller has: once the bound proves that no
    plan needs fewer, the search ends and best fit's plan is returned.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    best = best_fit_decreasing(histogram, capacity)  # checks the lengths
    goal = best.total_packs if target is None else min(target, best.total_packs)
    bound = _bound(histogram, capacity, goal)
    for num_classes in _CLASSES:
        if bound < min(goal, best.total_packs):
            runs = _plan(histogram, capacity, num_classes)
            best = min(best, runs, key=attrgetter("total_packs"))
    return LinearPlan(best, bound)


def _bound(histogram: Histogram, capacity: int, goal: int) -> int:
    simple = volume_bound(histogram, capacity)
    bound = simple
    for num_knots in _KNOTS:
        relaxation = by_knots(histogram, capacity, num_knots)
        if relaxation is None or bound >= goal:
            break
        bound = max(bound, _begun(relaxation).solve(goal).bound)
        if bound == simple:  # prices proportional to the length are best: more knots find them too
            break
    return bound


def _plan(histogram: Histogram, capacity: int, num_classes: int) -> PackRuns:
    relaxation = by_classes(histogram, capacity, num_classes)
    if relaxation is None:
        return best_fit_decreasing(histogram, capacity)
    solved = _begun(relaxation).solve(histogram.num_samples + 1)
    patterns, amounts = solved.patterns()
    rounded = (np.floor(amounts + (1.0 - fraction)).astype(np.int64) for fraction in _ROUND_UP)
    fill = functools.partial(fill_patterns, histogram, capacity, relaxation.lengths, patterns)
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

    def solve(self, goal: int) -> _Generation:
        """Generate columns until the bound is `goal`, none is worth adding, or time is up."""
        work = 0
        for _ in range(_MAX_ROUNDS):
            patterns = self._price()
            if len(patterns) == 0 or self.bound >= goal or work >= _MAX_WORK:
                break
            self._add(patterns)
            each = self._master.work_per_pivot()
            before = self._master.num_pivots
            self._master.solve((_MAX_WORK - work) // each + 1)
            work += (self._master.num_pivots - before) * each + self._relaxation.work_per_round()
        return self

    def _price(self) -> Int64s:
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

    def _add(self, patterns: Int64s) -> None:
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


def _begun(relaxation: Relaxation) -> _Generation:
    """Its master has a pattern of equals for each row, and columns without slots.

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
