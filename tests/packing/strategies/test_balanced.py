"""Plans on counts, against the same rules item by item, and the bounds of column generation."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import fewest, tiny_problems

from packidx.packing.counts import Histogram, PackRuns
from packidx.packing.strategies import lp as module
from packidx.packing.strategies.balanced import (
    DealRule,
    deal_evenly,
    length_correlation,
    plan_balanced,
)
from packidx.packing.strategies.decreasing import best_fit_decreasing, worst_fit_decreasing
from packidx.packing.strategies.lp import by_knots, linear_plan


def problems() -> st.SearchStrategy[tuple[list[int], int]]:
    return st.integers(1, 60).flatmap(
        lambda capacity: st.tuples(
            st.lists(st.integers(1, capacity), min_size=1, max_size=80), st.just(capacity)
        )
    )


def packs_of(runs: PackRuns, histogram: Histogram) -> list[list[int]]:
    """The lengths in each pack by position; fails unless every place is taken exactly once."""
    dealt = np.repeat(histogram.lengths, histogram.counts).tolist()
    packs: list[dict[int, int]] = [{} for _ in range(runs.total_packs)]
    at = 0
    columns = (runs.first_pack, runs.num_packs, runs.per_pack, runs.position)
    for first, count, each, position in zip(*(c.tolist() for c in columns), strict=True):
        for pack in packs[first : first + count]:
            for nth in range(each):
                assert position + nth not in pack
                pack[position + nth] = dealt[at]
                at += 1
    assert at == len(dealt)
    for pack in packs:
        assert sorted(pack) == list(range(len(pack)))
    return [[pack[nth] for nth in sorted(pack)] for pack in packs]


def emptiest_first(lengths: list[int], capacity: int) -> list[int]:
    """Worst fit decreasing item by item: what each pack holds, sorted."""
    heap: list[int] = []
    for length in sorted(lengths, reverse=True):
        if heap and heap[0] + length <= capacity:
            heapq.heapreplace(heap, heap[0] + length)
        else:
            heapq.heappush(heap, length)
    return sorted(heap)


def dealt_item_by_item(lengths: list[int], capacity: int, rule: DealRule) -> list[int]:
    """The rule of `deal_evenly` for one sample after another: what each used pack holds, sorted."""
    rooms = [capacity] * rule.num_packs
    for length in sorted(lengths, reverse=True):
        enough = length - 1 if length >= rule.until else rule.times * length
        if length < rule.until and length in rooms:
            room = rooms.pop(rooms.index(length))
        elif rooms and rooms[-1] > enough:
            room = rooms.pop()
        else:
            at = bisect_left(rooms, length)
            room = rooms.pop(at) if at < len(rooms) else capacity
        insort(rooms, room - length)
    return sorted(capacity - room for room in rooms if room < capacity)


def log_normal(count: int, median: int, sigma: float) -> np.ndarray:
    drawn = np.random.default_rng(0).normal(np.log(median), sigma, count)
    return np.clip(np.exp(drawn), 16, 8192).astype(np.int64)


@given(problems())
def test_best_fit_fills_packs_as_the_textbook_does(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = bisect_left(rooms, length)
        insort(rooms, (capacity if at == len(rooms) else rooms.pop(at)) - length)
    packs = packs_of(best_fit_decreasing(histogram, capacity), histogram)
    assert sorted(capacity - sum(pack) for pack in packs) == rooms


@given(problems())
def test_worst_fit_holds_what_the_rule_item_by_item_does(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    packs = packs_of(worst_fit_decreasing(histogram, capacity), histogram)
    assert sorted(map(sum, packs)) == emptiest_first(lengths, capacity)


@given(problems(), st.integers(1, 20), st.integers(1, 61), st.integers(2, 8))
def test_a_deal_fills_packs_as_the_rule_item_by_item_does(
    problem: tuple[list[int], int], num_packs: int, until: int, times: int
) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    rule = DealRule(num_packs, until, times)
    plan = deal_evenly(histogram, capacity, rule, len(lengths) + num_packs)
    assert plan is not None
    packs = packs_of(plan, histogram)
    assert all(packs)
    assert sorted(map(sum, packs)) == dealt_item_by_item(lengths, capacity, rule)


@given(problems(), st.integers(-2, 2))
def test_balanced_keeps_to_its_packs(problem: tuple[list[int], int], more: int) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    plain = best_fit_decreasing(histogram, capacity)
    at_most = plain.total_packs + more
    plan = plan_balanced(histogram, capacity, at_most)
    if plan is None:
        assert more < 0
        return
    packs = packs_of(plan, histogram)
    assert all(packs)
    assert len(packs) <= at_most
    assert max(map(sum, packs)) <= capacity
    if more >= 0:
        mixed = length_correlation(plan, histogram)
        assert mixed is None or mixed <= (length_correlation(plain, histogram) or 0.0)


@pytest.mark.parametrize(("median", "sigma"), [(800, 1.0), (300, 0.8)])
def test_balanced_mixes_lengths_at_no_more_packs(median: int, sigma: float) -> None:
    histogram = Histogram.of(log_normal(100_000, median, sigma))
    plain = best_fit_decreasing(histogram, 8192)
    mixed = plan_balanced(histogram, 8192, plain.total_packs)
    assert mixed is not None
    assert mixed.total_packs <= plain.total_packs
    before, after = (length_correlation(plan, histogram) for plan in (plain, mixed))
    assert before is not None
    assert after is not None
    assert before > 0.7
    assert after < 0.3


def check(runs: PackRuns, histogram: Histogram, capacity: int) -> None:
    """Every sample placed once, in order, within the capacity; no empty pack."""
    dealt = np.repeat(histogram.lengths, histogram.counts)
    used = np.zeros(runs.total_packs, np.int64)
    held = np.zeros(runs.total_packs, np.int64)
    at = 0
    columns = (runs.first_pack, runs.num_packs, runs.per_pack, runs.position)
    for first, packs, each, position in zip(*(c.tolist() for c in columns), strict=True):
        run = slice(first, first + packs)
        samples = dealt[at : at + packs * each]
        assert samples[0] == samples[-1]
        assert (held[run] == position).all()
        used[run] += samples[0] * each
        held[run] += each
        at += packs * each
    assert at == len(dealt)
    assert runs.total_packs == 0 or (used.max() <= capacity and held.min() > 0)


@given(tiny_problems())
def test_bound_optimum_and_plan_stand_in_this_order(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    plan = linear_plan(histogram, capacity)
    assert plan.bound <= fewest(lengths, capacity) <= plan.runs.total_packs
    assert plan.runs.total_packs <= best_fit_decreasing(histogram, capacity).total_packs
    check(plan.runs, histogram, capacity)


@given(
    st.integers(1, 400).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=60), st.just(c))
    ),
    st.integers(1, 8),
)
def test_few_knots_and_classes_are_valid_too(problem: tuple[list[int], int], num: int) -> None:
    """Coarse relaxations, with sand: the bound below any plan, the plan complete."""
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    runs = module._round_plan(histogram, capacity, max(num, 4))
    check(runs, histogram, capacity)
    relaxation = by_knots(histogram, capacity, num)
    if relaxation is not None:
        bound = module._start_master(relaxation).solve(1 << 40).bound
        best = best_fit_decreasing(histogram, capacity).total_packs
        assert bound <= min(best, runs.total_packs)


@pytest.mark.parametrize(
    ("lengths", "capacity", "packs"),
    [
        ([1] * 7, 1, 7),
        ([34] * 100, 100, 50),
        ([100] * 5, 100, 5),
        ([51, 52, 53, 99], 100, 4),
        ([2] * 999, 131_072, 1),
        ([1, 10**9 - 1, 7 * 10**8, 3 * 10**8], 10**9, 2),
        ([1, 2, 5000, 70_000, 60_000], 131_072, 2),
        ([6, 5, 5, 4, 4, 3, 3] * 10, 10, 30),
    ],
)
def test_odd_problems_are_proven(lengths: list[int], capacity: int, packs: int) -> None:
    histogram = Histogram.of(np.array(lengths))
    plan = linear_plan(histogram, capacity)
    check(plan.runs, histogram, capacity)
    assert (plan.bound, plan.runs.total_packs) == (packs, packs)
