"""The strategy on counts against the same rule item by item."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.pack.counts import Histogram, PackRuns
from packidx.pack.strategies.decreasing import best_fit_decreasing

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


def rooms_of(runs: PackRuns, histogram: Histogram, capacity: int) -> list[int]:
    """The same out of a plan on counts."""
    rooms = np.full(runs.total_packs, capacity)
    dealt = np.repeat(histogram.lengths, histogram.counts)
    at = 0
    columns = (runs.first_pack, runs.num_packs, runs.per_pack)
    for first, packs, each in zip(*columns, strict=True):
        used = dealt[at : at + packs * each].reshape(packs, each).sum(axis=1)
        rooms[first : first + packs] -= used
        at += packs * each
    return sorted(rooms.tolist())


@given(problems())
def test_counts_fill_packs_exactly_as_items_do(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    runs = best_fit_decreasing(histogram, capacity)
    assert rooms_of(runs, histogram, capacity) == item_level_rooms(lengths, capacity)


@given(problems())
def test_records_place_every_sample_within_capacity(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    runs = best_fit_decreasing(histogram, capacity)
    dealt = np.repeat(histogram.lengths, histogram.counts)
    used = np.zeros(runs.total_packs, int)
    held = np.zeros(runs.total_packs, int)
    at = 0
    columns = (runs.first_pack, runs.num_packs, runs.per_pack, runs.position)
    for first, packs, each, position in zip(*columns, strict=True):
        for pack in range(first, first + packs):
            assert held[pack] == position
            used[pack] += dealt[at : at + each].sum()
            held[pack] += each
            at += each
    assert at == len(lengths)
    assert used.max() <= capacity


@pytest.mark.parametrize("lengths", [[11], [0, 3], [-1]])
def test_lengths_outside_the_capacity_are_refused(lengths: list[int]) -> None:
    values, counts = np.unique(lengths, return_counts=True)
    with pytest.raises(ValueError, match="capacity"):
        best_fit_decreasing(Histogram(values[::-1].astype(np.int64), counts), 10)


def test_no_two_samples_of_half_and_more_share_a_pack() -> None:
    lengths = [51, 52, 53, 99]
    assert all(a + b > 100 for a, b in combinations(lengths, 2))
    assert best_fit_decreasing(Histogram.of(np.array(lengths)), 100).total_packs == 4
