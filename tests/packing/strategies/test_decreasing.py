"""The strategy on counts against the same rule item by item."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packidx.packing.counts import Histogram, PackRuns
from packidx.packing.strategies.decreasing import best_fit_decreasing

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
