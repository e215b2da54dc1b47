"""Plans that deal to the emptiest pack, against the same rules item by item."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import nemo_knapsack

from packidx.packing.counts import Histogram, PackRuns
from packidx.packing.strategies.balanced import (
    DealRule,
    deal_evenly,
    length_correlation,
    plan_balanced,
)
from packidx.packing.strategies.decreasing import best_fit_decreasing, worst_fit_decreasing


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
def test_worst_fit_holds_what_the_rule_item_by_item_does(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    packs = packs_of(worst_fit_decreasing(histogram, capacity), histogram)
    assert sorted(map(sum, packs)) == emptiest_first(lengths, capacity)


@pytest.mark.parametrize("median", [30, 300, 3000])
def test_worst_fit_is_nemo_automodels_knapsack(median: int) -> None:
    theirs = nemo_knapsack()
    lengths = log_normal(5000, median, 1.0)
    histogram = Histogram.of(lengths)
    ours = packs_of(worst_fit_decreasing(histogram, 8192), histogram)
    expected = theirs(lengths.tolist(), 8192)
    assert len(ours) == len(expected)
    assert sorted(map(sum, ours)) == sorted(int(lengths[pack].sum()) for pack in expected)


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
