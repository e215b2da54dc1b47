"""Strategies behind one interface: sizes and limits in, places and a lower bound out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.hashing import derive_key
from packidx.pack.bounds import lower_bound
from packidx.pack.even import even_out
from packidx.pack.histogram import Histogram
from packidx.pack.runs import PackRuns
from packidx.pack.slots import Slots, deal_into, from_packs
from packidx.pack.strategies.balanced import balanced
from packidx.pack.strategies.best_fit import best_fit_decreasing
from packidx.pack.strategies.caps.bounds import joint_bound
from packidx.pack.strategies.caps.capped import capped
from packidx.pack.strategies.in_order import first_fit, next_fit, window_fit, worst_fit
from packidx.pack.strategies.worst_fit import worst_fit_decreasing

# Above this certified gap, as a share of the bound and more than a pack, `auto` spends the seconds
# that `lp` takes.
LP_GAP = 0.001


@dataclass(frozen=True, slots=True)
class Problem:
    """Items that are planned as one.

    Attributes:
        lengths: int [n], tokens that each takes in its pack, 1..capacity.
        capacity: tokens a pack may hold.
        caps: name -> (int64 [n], what each item has of it; the most that a pack may have).
        vision_cost: int64 [n], dealt evenly over packs by `balanced`; None where unknown or 0.
    """

    lengths: NDArray[np.integer]
    capacity: int
    caps: dict[str, tuple[Int64s, int]]
    vision_cost: Int64s | None = None

    def sizes(self) -> tuple[Int64s, Int64s, list[str]]:
        """Sizes int64 [n, d], limits int64 [d] and names of all dimensions, tokens first."""
        columns = [self.lengths.astype(np.int64), *(values for values, _ in self.caps.values())]
        limits = [self.capacity, *(most for _, most in self.caps.values())]
        return np.stack(columns, axis=1), np.array(limits, np.int64), ["tokens", *self.caps]

    def select(self, items: NDArray[np.bool_]) -> Problem:
        """The problem of some of its items."""
        caps = {name: (values[items], most) for name, (values, most) in self.caps.items()}
        cost = None if self.vision_cost is None else self.vision_cost[items]
        return Problem(self.lengths[items], self.capacity, caps, cost)


@dataclass(frozen=True, slots=True)
class Solution:
    """How one problem is packed.

    Attributes:
        strategy: the rule that was taken.
        bound: packs that no plan can go below, and the name of the proof.
        slots: key -> places of the items; another key is another composition of the same packs.
        num_packs: packs, where they are known before the items are placed.
    """

    strategy: str
    bound: tuple[int, str]
    slots: Callable[[int], Slots]
    num_packs: int | None = None


def solve(problem: Problem, strategy: str, key: int) -> Solution:
    """Pack `problem` by a strategy, as `PlanOptions` names it; `key` is the first composition's.

    Caps take a rule for several limits, whatever the strategy, but for those of other packers.
    """
    name, _, number = strategy.partition(":")
    if name in ("first-fit", "next-fit", "window") or (problem.caps and name == "knapsack"):
        return _item_by_item(problem, name, int(number or 0))
    if problem.caps:
        return _capped(problem, name, key)
    return _on_counts(problem, name)


def bound_of(problem: Problem) -> tuple[int, str]:
    """Packs that no plan of `problem` can go below, and the name of the proof."""
    if problem.caps:
        return joint_bound(*problem.sizes())
    return lower_bound(Histogram.of(problem.lengths), problem.capacity)


def _on_counts(problem: Problem, strategy: str) -> Solution:
    histogram = Histogram.of(problem.lengths)
    capacity = problem.capacity
    bound = lower_bound(histogram, capacity)
    name, runs = strategy, None
    if strategy == "knapsack":
        runs = worst_fit_decreasing(histogram, capacity)
    elif strategy == "balanced":
        runs = balanced(histogram, capacity)
    elif strategy == "lp":
        runs, bound = _linear(histogram, capacity, bound)
    else:
        name, runs = "bfd", best_fit_decreasing(histogram, capacity)
    if strategy == "auto" and runs is not None:
        name, runs, bound = _better(histogram, capacity, runs, bound)
    if runs is None:
        raise OptionError(f"strategy {strategy} found no plan: use auto")
    chosen = runs

    def slots(key: int) -> Slots:
        found = deal_into(chosen, problem.lengths, key)
        return _evened(problem, found, key) if name == "balanced" else found

    return Solution(name, bound, slots, chosen.total_packs)


def _better(
    histogram: Histogram, capacity: int, runs: PackRuns, bound: tuple[int, str]
) -> tuple[str, PackRuns, tuple[int, str]]:
    """What `auto` takes instead of best fit."""
    name, plain = "bfd", runs
    gap = runs.total_packs - bound[0]
    if gap > max(1, LP_GAP * bound[0]):
        linear, bound = _linear(histogram, capacity, bound, runs.total_packs)
        if linear.total_packs < runs.total_packs:
            name, runs = "lp", linear
    composed = balanced(histogram, capacity, runs.total_packs, plain)
    if composed is not None and composed is not plain:
        name, runs = "balanced", composed
    return name, runs, bound


def _linear(
    histogram: Histogram, capacity: int, bound: tuple[int, str], target: int | None = None
) -> tuple[PackRuns, tuple[int, str]]:
    from packidx.pack.strategies.lp.column_generation import linear_plan

    found = linear_plan(histogram, capacity, target=target)
    return found.runs, max(bound, (found.bound, "LP"), key=lambda one: one[0])


def _capped(problem: Problem, strategy: str, key: int) -> Solution:
    """The plan for tokens alone where it keeps the caps, else one for all limits at once."""
    sizes, limits, _ = problem.sizes()
    tokens = _on_counts(replace(problem, caps={}), strategy)

    @lru_cache(maxsize=1)
    def plan(key: int) -> tuple[str, Slots]:
        start = tokens.slots(key)
        packs = np.empty(len(sizes), np.int64)
        packs[start.item] = start.pack
        name, found = capped(sizes, limits, key, packs)
        if name == "tokens":
            return tokens.strategy, start
        return f"capped by {name}", from_packs(found, problem.lengths, key)

    name, first = plan(key)
    return Solution(name, bound_of(problem), lambda key: plan(key)[1], first.num_packs)


def _item_by_item(problem: Problem, name: str, window: int) -> Solution:
    sizes, limits, _ = problem.sizes()
    if name == "window":
        pack = window_fit(sizes, limits, window)
    else:
        rules = {"first-fit": first_fit, "next-fit": next_fit, "knapsack": worst_fit}
        pack = rules[name](sizes, limits)
    full = name if not window else f"{name}:{window}"
    return Solution(full, bound_of(problem), lambda key: from_packs(pack, problem.lengths, key))


def _evened(problem: Problem, slots: Slots, key: int) -> Slots:
    """The same slots, items of equal length exchanged so that packs see equally costly media."""
    if problem.vision_cost is None:
        return slots
    cost = problem.vision_cost[slots.item]
    length = problem.lengths[slots.item].astype(np.int64)
    order = even_out(slots.pack.astype(np.int64), length, cost, derive_key(key, "even"))
    return slots.with_items(slots.item[order])
