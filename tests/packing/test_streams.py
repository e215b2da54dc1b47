"""Lanes of a stream: every copy once, windows by number, packs that hold what they may."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packidx.errors import MismatchError
from packidx.packing.solve import Problem
from packidx.packing.streams import (
    LaneOrder,
    check_lanes,
    expected_copies,
    least_lanes,
    most_copies,
    pack_window,
)


@settings(max_examples=200, deadline=None)
@given(
    copies=st.lists(st.integers(0, 3), min_size=1, max_size=90),
    lanes=st.integers(1, 9),
    window=st.integers(1, 40),
    seed=st.integers(0, 3),
)
def test_every_copy_comes_once_in_windows_of_about_n(
    copies: list[int], lanes: int, window: int, seed: int
) -> None:
    most = max(1, *copies)
    order = LaneOrder(np.array(copies), most, Fraction(sum(copies)), lanes, window, seed)
    seen, sizes = [], []
    for lane in range(lanes):
        for number in range(order.num_windows):
            come = order.window(lane, number)
            assert [*map(np.ndarray.tolist, come)] == [
                *map(np.ndarray.tolist, order.window(lane, number))
            ]
            seen += zip(come.row.tolist(), come.copy.tolist(), strict=True)
            sizes.append(len(come.row))
    assert sorted(seen) == [(row, copy) for row, n in enumerate(copies) for copy in range(n)]
    mean = sum(copies) / lanes / order.num_windows
    assert mean <= 1.5 * window or order.num_windows == 1


def test_lanes_and_epochs_have_orders_of_their_own() -> None:
    ones = np.ones(400, np.int64)
    orders = [LaneOrder(ones, 1, Fraction(400), 2, 50, 7, epoch) for epoch in (0, 1)]
    rows = [order.window(lane, 0).row.tolist() for order in orders for lane in (0, 1)]
    assert len({tuple(each) for each in rows}) == 4
    assert len({order.key(lane, n) for order in orders for lane in (0, 1) for n in range(4)}) == 16


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5)), max_size=80),
    strategy=st.sampled_from(["auto", "bfd", "next-fit"]),
    key=st.integers(0, 9),
)
def test_packs_of_a_window_hold_each_item_once_within_all_limits(
    sizes: list[tuple[int, int]], strategy: str, key: int
) -> None:
    lengths, images = (np.array([pair[n] for pair in sizes], np.int64) for n in (0, 1))
    problem = Problem(lengths, 64, {"num_images": (images, 6)}, vision_cost=images)
    packs = pack_window(problem, strategy, key)
    assert sorted(item for pack in packs for item in pack.tolist()) == list(range(len(sizes)))
    for pack in packs:
        assert lengths[pack].sum() <= 64 and images[pack].sum() <= 6
    again = pack_window(Problem(lengths, 64, {"num_images": (images, 6)}), strategy, key)
    assert [pack.tolist() for pack in packs] == [pack.tolist() for pack in again]


def test_packs_of_a_window_do_not_come_longest_first() -> None:
    lengths = np.random.default_rng(0).integers(1, 64, 400)
    longest = [int(lengths[pack].max()) for pack in pack_window(Problem(lengths, 64, {}), "bfd", 1)]
    ranks = np.argsort(np.argsort(longest))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 0.2


def test_copies_follow_the_weights() -> None:
    weights = {"a": "2.5", "b": "1/3"}
    assert (most_copies(weights), most_copies({})) == (3, 1)
    assert expected_copies({"a": 4, "b": 6, "c": 5}, weights) == 10 + 2 + 5


def test_lanes_are_a_multiple_of_what_reads_them() -> None:
    assert [least_lanes(each) for each in (1, 3, 64, 65)] == [64, 66, 64, 65]
    check_lanes(24, 2, 3, 4)
    with pytest.raises(MismatchError, match="lanes=24"):
        check_lanes(25, 2, 3, 4)
