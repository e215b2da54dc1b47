"""The strategy on counts against the same rule item by item, and its lower bounds."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.plan.best_fit import best_fit_decreasing
from packidx.plan.bounds import lower_bound, martello_toth_l2, volume_bound
from packidx.plan.histogram import Histogram
from packidx.plan.runs import Records

CAPACITIES = st.integers(1, 60)


def problems() -> st.SearchStrategy[tuple[list[int], int]]:
    return CAPACITIES.flatmap(
        lambda capacity: st.tuples(
            st.lists(st.integers(1, capacity), min_size=1, max_size=80), st.just(capacity)
        )
    )


def item_level_rooms(lengths: list[int], capacity: int) -> list[int]:
    """What best fit decreasing as the textbook has it leaves free in each pack, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = bisect_left(rooms, length)
        insort(rooms, (capacity if at == len(rooms) else rooms.pop(at)) - length)
    return rooms


def rooms_of(records: Records, histogram: Histogram, capacity: int) -> list[int]:
    """The same out of a plan on counts."""
    rooms = np.full(records.total_packs, capacity)
    dealt = np.repeat(histogram.lengths, histogram.counts)
    at = 0
    columns = (records.first_pack, records.num_packs, records.per_pack)
    for first, packs, each in zip(*columns, strict=True):
        used = dealt[at : at + packs * each].reshape(packs, each).sum(axis=1)
        rooms[first : first + packs] -= used
        at += packs * each
    return sorted(rooms.tolist())


def optimum(lengths: list[int], capacity: int) -> int:
    """The fewest packs, by dynamic programming over subsets (at most 9 samples)."""
    full = (1 << len(lengths)) - 1
    fits = [
        sum(length for bit, length in enumerate(lengths) if mask >> bit & 1) <= capacity
        for mask in range(full + 1)
    ]
    best = [0] + [len(lengths)] * full
    for mask in range(1, full + 1):
        part = mask
        while part:
            if fits[part]:
                best[mask] = min(best[mask], best[mask ^ part] + 1)
            part = (part - 1) & mask
    return best[full]


@given(problems())
def test_counts_fill_packs_exactly_as_items_do(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    records = best_fit_decreasing(histogram, capacity)
    assert rooms_of(records, histogram, capacity) == item_level_rooms(lengths, capacity)


def test_counts_fill_packs_exactly_as_items_do_at_scale() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(800), 1, 20_000)), 16, 8192).astype(np.int64)
    histogram = Histogram.of(lengths)
    records = best_fit_decreasing(histogram, 8192)
    assert rooms_of(records, histogram, 8192) == item_level_rooms(lengths.tolist(), 8192)


@given(problems())
def test_records_place_every_sample_within_capacity(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    records = best_fit_decreasing(histogram, capacity)
    dealt = np.repeat(histogram.lengths, histogram.counts)
    used = np.zeros(records.total_packs, int)
    held = np.zeros(records.total_packs, int)
    at = 0
    columns = (records.first_pack, records.num_packs, records.per_pack, records.position)
    for first, packs, each, position in zip(*columns, strict=True):
        for pack in range(first, first + packs):
            assert held[pack] == position
            used[pack] += dealt[at : at + each].sum()
            held[pack] += each
            at += each
    assert at == len(lengths)
    assert used.max() <= capacity


@given(
    st.integers(1, 20).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=9), st.just(c))
    )
)
def test_bounds_never_exceed_the_optimum(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    best = optimum(lengths, capacity)
    assert volume_bound(histogram, capacity) <= best
    assert martello_toth_l2(histogram, capacity) <= best


@given(problems())
def test_l2_is_the_maximum_over_all_thresholds(problem: tuple[list[int], int]) -> None:
    """Against the definition, threshold by threshold."""
    lengths, capacity = problem
    values = []
    for a in range(capacity // 2 + 1):
        large = [x for x in lengths if x > capacity - a]
        medium = [x for x in lengths if capacity / 2 < x <= capacity - a]
        small = [x for x in lengths if a <= x <= capacity / 2]
        overflow = sum(small) - (len(medium) * capacity - sum(medium))
        values.append(len(large) + len(medium) + max(0, -(-overflow // capacity)))
    assert martello_toth_l2(Histogram.of(np.array(lengths)), capacity) == max(values)


def test_l2_proves_what_the_volume_cannot() -> None:
    histogram = Histogram.of(np.array([6, 6, 6, 5, 5]))
    assert volume_bound(histogram, 10) == 3
    assert lower_bound(histogram, 10) == (4, "L2")  # 6 6 6 alone, 5 + 5
    assert best_fit_decreasing(histogram, 10).total_packs == 4


@pytest.mark.parametrize("lengths", [[11], [0, 3], [-1]])
def test_lengths_outside_the_capacity_are_refused(lengths: list[int]) -> None:
    values, counts = np.unique(lengths, return_counts=True)
    with pytest.raises(ValueError, match="capacity"):
        best_fit_decreasing(Histogram(values[::-1].astype(np.int64), counts), 10)


def test_no_two_samples_of_half_and_more_share_a_pack() -> None:
    lengths = [51, 52, 53, 99]
    assert all(a + b > 100 for a, b in combinations(lengths, 2))
    assert best_fit_decreasing(Histogram.of(np.array(lengths)), 100).total_packs == 4
