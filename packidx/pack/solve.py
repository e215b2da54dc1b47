"""Strategies behind one interface: sizes and limits in, slots and a lower bound out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.errors import OptionError
from packidx.hashing import derive_key
from packidx.pack.bounds import joint_bound, lower_bound
from packidx.pack.counts import Histogram, PackRuns
from packidx.pack.even import even_out
from packidx.pack.slots import Slots, deal_into, from_packs
from packidx.pack.strategies.balanced import balanced
from packidx.pack.strategies.capped import capped
from packidx.pack.strategies.decreasing import best_fit_decreasing, worst_fit_decreasing
from packidx.pack.strategies.in_order import first_fit, next_fit, window_fit, worst_fit
from packidx.pack.strategies.lp import linear_plan

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
        vision_cost: int64 [n], dealt evenly over packs by `balanced`; None where unknown or 0.
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


@dataclass(frozen=True, slots=True)
class Solution:
    """How one problem is packed: plain data, so that it can be kept and sent.

    Attributes:
        strategy: name of the rule.
        bound: packs that no plan can go below, and the name of the proof.
        num_packs: packs of the composition that is solved.
        runs: packs by length alone, to which items are dealt anew in each composition; None where
            packs are the same in all.
        pack: int32 [n], the pack of each item, in the composition `key` where there are `runs`.
        is_even: vision costs are dealt out evenly.
    """

    strategy: str
    bound: tuple[int, str]
    num_packs: int
    runs: PackRuns | None = None
    pack: Int32s | None = None
    key: int = 0
    is_even: bool = False

    @classmethod
    def of_items(cls, strategy: str, bound: tuple[int, str], pack: Int32s) -> Solution:
        """The solution that puts each item into its `pack`."""
        return cls(strategy, bound, int(pack.max(initial=-1)) + 1, pack=pack)

    @classmethod
    def of_counts(
        cls, strategy: str, bound: tuple[int, str], runs: PackRuns, is_even: bool = False
    ) -> Solution:
        """The solution that deals items to `runs`."""
        return cls(strategy, bound, runs.total_packs, runs, is_even=is_even)

    def slots(self, problem: Problem, key: int) -> Slots:
        """The items' slots; another key is another composition."""
        if self.pack is not None and (self.runs is None or key == self.key):
            return from_packs(self.pack, problem.lengths, key)
        slots = self._dealt(problem, key)
        pack = _keep_caps(problem, slots, key)
        return slots if pack is None else from_packs(pack, problem.lengths, key)

    def _dealt(self, problem: Problem, key: int) -> Slots:
        """The composition `key` of `runs`, which need not keep caps."""
        assert self.runs is not None
        slots = deal_into(self.runs, problem.lengths, key)
        if not self.is_even or problem.vision_cost is None:
            return slots
        cost = problem.vision_cost[slots.item]
        length = problem.lengths[slots.item].astype(np.int64)
        order = even_out(slots.pack.astype(np.int64), length, cost, derive_key(key, "even"))
        return slots.with_items(slots.item[order])

    def keeping_caps(self, problem: Problem, key: int) -> Solution:
        """The same for `problem`, whose caps it may not keep yet in the composition `key`."""
        pack, bound = _keep_caps(problem, self._dealt(problem, key), key), bound_of(problem)
        if pack is None:
            return replace(self, bound=bound)
        num_packs = int(pack.max()) + 1
        return replace(
            self, strategy="capped", bound=bound, num_packs=num_packs, pack=pack, key=key
        )


def solve(problem: Problem, strategy: str, key: int) -> Solution:
    """Pack `problem` by a strategy, as `PlanOptions` names it; `key` is the first composition's.

    Caps take a rule for several limits, whatever the strategy, but for those of other packers.

    Raises:
        OptionError: there is no such strategy, or it finds no plan.
    """
    name, _, number = strategy.partition(":")
    if name in _BY_ITEM and (problem.caps or name != "knapsack"):
        sizes, limits, _ = problem.sizes()
        pack = _BY_ITEM[name](sizes, limits, int(number or 0)).astype(np.int32)
        return Solution.of_items(strategy, bound_of(problem), pack)
    solution = _on_counts(problem, name)
    return solution.keeping_caps(problem, key) if problem.caps else solution


def bound_of(problem: Problem) -> tuple[int, str]:
    """Packs that no plan of `problem` can go below, and the name of the proof."""
    if problem.caps:
        return joint_bound(*problem.sizes())
    return lower_bound(Histogram.of(problem.lengths), problem.capacity)


def _on_counts(problem: Problem, strategy: str) -> Solution:
    """The solution for tokens alone."""
    histogram, capacity = Histogram.of(problem.lengths), problem.capacity
    bound = lower_bound(histogram, capacity)
    if strategy == "knapsack":
        return Solution.of_counts(strategy, bound, worst_fit_decreasing(histogram, capacity))
    if strategy == "balanced":
        runs = balanced(histogram, capacity)
        if runs is None:
            raise OptionError(f"strategy {strategy} found no plan: use auto")
        return Solution.of_counts(strategy, bound, runs, is_even=True)
    if strategy == "lp":
        return _linear(histogram, capacity, bound)
    if strategy not in ("auto", "bfd"):
        raise OptionError(f"there is no strategy {strategy!r}")
    plain = best_fit_decreasing(histogram, capacity)
    best_fit = Solution.of_counts("bfd", bound, plain)
    return _better(histogram, capacity, best_fit, plain) if strategy == "auto" else best_fit


def _better(histogram: Histogram, capacity: int, best_fit: Solution, plain: PackRuns) -> Solution:
    """Return the solution that `auto` takes: best fit, or one that is better."""
    solution = best_fit
    if plain.total_packs - best_fit.bound[0] > max(1, LP_GAP * best_fit.bound[0]):
        linear = _linear(histogram, capacity, best_fit.bound, plain.total_packs)
        is_fewer = linear.num_packs < plain.total_packs
        solution = linear if is_fewer else replace(best_fit, bound=linear.bound)
    runs = balanced(histogram, capacity, solution.num_packs, plain)
    if runs is None or runs is plain:
        return solution
    return Solution.of_counts("balanced", solution.bound, runs, is_even=True)


def _linear(
    histogram: Histogram, capacity: int, bound: tuple[int, str], target: int | None = None
) -> Solution:
    plan = linear_plan(histogram, capacity, target=target)
    return Solution.of_counts("lp", max(bound, (plan.bound, "LP"), key=itemgetter(0)), plan.runs)


def _keep_caps(problem: Problem, start: Slots, key: int) -> Int32s | None:
    """The packs of the composition `key`, made to keep the caps; None: those of `start` do."""
    if not problem.caps:
        return None
    sizes, limits, _ = problem.sizes()
    packs = np.empty(len(sizes), np.int64)
    packs[start.item] = start.pack
    kept = capped(sizes, limits, key, packs)
    return None if kept is None else kept.astype(np.int32)
