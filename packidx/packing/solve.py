"""Strategies behind one interface: sizes and limits in, slots and a lower bound out."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from packidx.arrays import Bools, Int64s, Ints
from packidx.errors import OptionError
from packidx.hashing import derive_key
from packidx.packing.counts import Histogram, PackRuns, joint_bound, lower_bound
from packidx.packing.slots import Slots, deal_into, from_packs
from packidx.packing.strategies.balanced import even_out, plan_balanced
from packidx.packing.strategies.capped import pack_capped
from packidx.packing.strategies.decreasing import best_fit_decreasing, worst_fit_decreasing
from packidx.packing.strategies.in_order import first_fit, next_fit, window_fit, worst_fit
from packidx.packing.strategies.lp import linear_plan

# Above this certified gap, as a share of the bound and more than a pack, `auto` spends the seconds
# that `lp` takes.
LP_GAP = 0.001

_BY_ITEM = {
    "first-fit": lambda sizes, limits, window: first_fit(sizes, limits),
    "next-fit": lambda sizes, limits, window: next_fit(sizes, limits),
    "knapsack": lambda sizes, limits, window: worst_fit(sizes, limits),
    "window": window_fit,
}
"""Rules that take items one after the other: sizes, limits, window. `knapsack` does so under caps,
and on counts without any, to the same packs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Items that are planned as one.

    Attributes:
        lengths: int [n], tokens that each takes in its pack, 1..capacity.
        capacity: tokens a pack may hold.
        caps: name -> (int64 [n], what each item has of it; the most that a pack may have).
        vision_cost: int64 [n], dealt evenly over packs by `plan_balanced`; None if unknown or 0.
    """

    lengths: Ints
    capacity: int
    caps: dict[str, tuple[Int64s, int]]
    vision_cost: Int64s | None = None

    def sizes(self) -> tuple[Int64s, Int64s, list[str]]:
        """Sizes int64 [n, d], limits int64 [d] and names of all dimensions, tokens first."""
        columns = [self.lengths.astype(np.int64), *(values for values, _ in self.caps.values())]
        limits = [self.capacity, *(most for _, most in self.caps.values())]
        return np.stack(columns, axis=1), np.array(limits, np.int64), ["tokens", *self.caps]

    def select(self, items: Bools | Ints) -> Problem:
        """The problem of some of its items, by a mask or by numbers."""
        caps = {name: (values[items], most) for name, (values, most) in self.caps.items()}
        cost = None if self.vision_cost is None else self.vision_cost[items]
        return Problem(self.lengths[items], self.capacity, caps, cost)


class Solution(NamedTuple):
    """The packs of one problem.

    Attributes:
        strategy: name of the rule.
        bound: packs that no plan can go below, and the name of the proof.
        slots: of all items.
    """

    strategy: str
    bound: tuple[int, str]
    slots: Slots


def solve_problem(problem: Problem, strategy: str, key: int) -> Solution:
    """Pack `problem` by a strategy, as `PlanOptions` names it.

    Caps take a rule for several limits, whatever the strategy, but for those of other packers.

    Args:
        key: picks which of equal items go together.

    Raises:
        OptionError: there is no such strategy, or it finds no plan.
    """
    name, _, number = strategy.partition(":")
    if name in _BY_ITEM and (problem.caps or name != "knapsack"):
        sizes, limits, _ = problem.sizes()
        pack = _BY_ITEM[name](sizes, limits, int(number or 0)).astype(np.int32)
        return Solution(strategy, bound_of(problem), from_packs(pack, problem.lengths, key))
    taken, bound, runs = _on_counts(problem, name)
    slots = deal_into(runs, problem.lengths, key)
    if taken == "balanced" and problem.vision_cost is not None:
        cost = problem.vision_cost[slots.item]
        length = problem.lengths[slots.item].astype(np.int64)
        order = even_out(slots.pack.astype(np.int64), length, cost, derive_key(key, "even"))
        slots = slots.with_items(slots.item[order])
    if not problem.caps:
        return Solution(taken, bound, slots)
    sizes, limits, _ = problem.sizes()
    start = np.empty(len(slots.item), np.int64)
    start[slots.item] = slots.pack
    kept = pack_capped(sizes, limits, key, start)
    if kept is not None:
        taken, slots = "capped", from_packs(kept.astype(np.int32), problem.lengths, key)
    return Solution(taken, bound_of(problem), slots)


def bound_of(problem: Problem) -> tuple[int, str]:
    """Packs that no plan of `problem` can go below, and the name of the proof."""
    if problem.caps:
        return joint_bound(*problem.sizes())
    return lower_bound(Histogram.of(problem.lengths), problem.capacity)


Plan = tuple[str, tuple[int, str], PackRuns]
"""Name of the rule, lower bound and the name of its proof, packs by length alone."""


def _on_counts(problem: Problem, strategy: str) -> Plan:
    """Return the plan for tokens alone."""
    histogram, capacity = Histogram.of(problem.lengths), problem.capacity
    bound = lower_bound(histogram, capacity)
    if strategy == "knapsack":
        return strategy, bound, worst_fit_decreasing(histogram, capacity)
    if strategy == "balanced":
        even = plan_balanced(histogram, capacity)
        if even is None:
            raise OptionError(f"strategy {strategy} found no plan: use auto")
        return strategy, bound, even
    if strategy == "lp":
        return _pack_by_lp(histogram, capacity, bound)
    if strategy not in ("auto", "bfd"):
        raise OptionError(f"there is no strategy {strategy!r}")
    plain = best_fit_decreasing(histogram, capacity)
    best: Plan = "bfd", bound, plain
    if strategy == "bfd":
        return best
    if plain.total_packs - bound[0] > max(1, LP_GAP * bound[0]):
        linear = _pack_by_lp(histogram, capacity, bound, plain.total_packs)
        is_fewer = linear[2].total_packs < plain.total_packs
        best = linear if is_fewer else ("bfd", linear[1], plain)
    even = plan_balanced(histogram, capacity, best[2].total_packs, plain)
    return best if even is None or even is plain else ("balanced", best[1], even)


def _pack_by_lp(
    histogram: Histogram, capacity: int, bound: tuple[int, str], target: int | None = None
) -> Plan:
    plan = linear_plan(histogram, capacity, target=target)
    return "lp", max(bound, (plan.bound, "LP"), key=itemgetter(0)), plan.runs
