"""Plans under several limits at once: every limit holds, every item has one pack, few packs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sized_items import Int64s, Problem, assert_plan, problems
from vlm_mix import vlm_mix

from packidx.pack.bounds import joint_bound, volume_packs
from packidx.pack.counts import Histogram
from packidx.pack.strategies.caps import capped as module
from packidx.pack.strategies.caps.capped import alternatives, capped
from packidx.pack.strategies.caps.rooms import Rooms, assign_rooms, best_fit_in_all
from packidx.pack.strategies.caps.swaps import swap
from packidx.pack.strategies.decreasing import best_fit_decreasing

NAMES = ("tokens", "num_images", "vision_patches", "samples")


def packed(*problem: Any) -> Any:
    """The packs alone of what `capped` returns."""
    return capped(*problem)[1]


def vlm_problem(count: int, samples: int | None = None) -> Problem:
    mix = vlm_mix(count)
    columns = [mix["length"], mix["num_images"], mix["vision_patches"]]
    limits = [8192, 32, 24_576]
    if samples:
        columns.append(np.ones(count, np.int64))
        limits.append(samples)
    return np.stack(columns, axis=1), np.array(limits, np.int64)


@given(problems(), st.integers(0, 2**63))
def test_every_limit_holds(problem: Problem, key: int) -> None:
    sizes, limits = problem
    pack = packed(sizes, limits, key)
    assert joint_bound(sizes, limits, NAMES[: len(limits)])[0] <= assert_plan(pack, *problem)
    assert np.array_equal(pack, packed(sizes, limits, key))


@given(problems(), st.integers(0, 2**63))
def test_every_alternative_is_a_plan(problem: Problem, key: int) -> None:
    counts = [assert_plan(pack, *problem) for _, pack in alternatives(*problem, key)]
    assert assert_plan(packed(*problem, key), *problem) in counts


@given(problems(), st.data())
def test_a_start_that_breaks_limits_is_repaired(problem: Problem, data: st.DataObject) -> None:
    sizes, limits = problem
    start = packed(sizes[:, :1], limits[:1], data.draw(st.integers(0, 9)))
    for _, pack in alternatives(sizes, limits, 0, start):
        assert_plan(pack, *problem)


@given(problems(200), st.integers(0, 2**63))
def test_deal_never_overfills(problem: Problem, key: int) -> None:
    sizes, limits = problem
    rooms = Rooms.empty(max(1, volume_packs(sizes, limits) // 2), limits)
    pack = assign_rooms(sizes, rooms, key)
    left = np.repeat(limits[None], rooms.num_packs, axis=0)
    np.subtract.at(left, pack[pack >= 0], sizes[pack >= 0])
    assert (left >= 0).all() and np.array_equal(left.T, rooms.rooms)
    assert (pack >= 0).any()  # an empty pack takes any item


@given(problems(), st.integers(1, 9))
def test_best_fit_in_chunks_is_best_fit_of_each_chunk(problem: Problem, chunks: int) -> None:
    sizes, limits = problem
    together = best_fit_in_all(sizes, limits, chunks)
    assert len(np.unique(together)) == sum(
        len(np.unique(together[first::chunks])) for first in range(chunks)
    )
    one = best_fit_in_all(sizes, limits, 1)
    assert_plan(one, *problem)
    weights = module.scarcity(sizes, limits)
    rooms: list[Int64s] = []  # the same, item by item
    for size, pack in zip(sizes, one.tolist(), strict=True):
        able = [k for k, room in enumerate(rooms) if (room >= size).all()]
        if not able:
            rooms.append(limits.copy())
        assert pack == (
            min(able, key=lambda k: int(rooms[k] @ weights)) if able else len(rooms) - 1
        )
        rooms[pack] -= size


@pytest.mark.parametrize("seed", range(8))
def test_swapping_breaks_nothing_that_held(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.stack([rng.integers(30, 41, 2000), *rng.integers(0, 9, (2, 2000))], axis=1)
    limits = np.array([150, 20, 18])
    pack = packed(sizes[:, :1], limits[:1], seed)
    rooms = Rooms.empty(int(pack.max()) + 1, limits)
    rooms.take(sizes, pack)
    before = rooms.rooms.copy()
    swap(sizes, rooms, pack, np.arange(len(sizes)), seed)
    after = Rooms.empty(rooms.num_packs, limits)
    after.take(sizes, pack)
    assert np.array_equal(after.rooms, rooms.rooms)
    assert (rooms.rooms >= np.minimum(before, 0)).all()
    broken = [int((room < 0).any(0).sum()) for room in (before, rooms.rooms)]
    assert 0 < broken[1] < 0.5 * broken[0]


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 5, 4, 5]])
def test_equals_or_nearly_equals_are_exchanged(lengths: list[int]) -> None:
    """Two items with images in the one pack, none in the other: one exchange keeps all limits."""
    sizes, limits = np.array([lengths, [2, 2, 0, 0]]).T, np.array([10, 3])
    start = np.array([0, 0, 1, 1])
    name, pack = next(alternatives(sizes, limits, 0, start))
    assert name == "repair" and assert_plan(pack, sizes, limits) == 2
    assert pack[0] != pack[1]


def test_a_pack_that_gives_two_items_away_keeps_its_tokens() -> None:
    """Pack 0 has room for one partner that is a token longer, not for two at once."""
    sizes = np.array([[3, 2], [5, 2], [2, 1], [5, 2], [4, 0], [6, 0]])
    for key in range(40):
        pack = np.array([0, 0, 0, 1, 2, 3])
        rooms = Rooms.empty(4, np.array([11, 2]))
        rooms.take(sizes, pack)
        swap(sizes, rooms, pack, np.arange(6), key)
        assert (rooms.rooms[0] >= 0).all()
        assert set(pack[[4, 5]]) != {2, 3}  # one of the two did move


def test_where_no_limit_binds_the_plan_is_that_for_tokens() -> None:
    sizes, limits = vlm_problem(5000)
    loose = np.array([8192, 10_000, 10**9])
    plans = list(alternatives(sizes, loose, 3))
    assert [name for name, _ in plans] == ["tokens"]
    runs = best_fit_decreasing(Histogram.of(sizes[:, 0]), 8192)
    assert assert_plan(plans[0][1], sizes, loose) == runs.total_packs
    start = np.arange(len(sizes))
    assert np.array_equal(packed(sizes, loose, 3, start), start)


@pytest.mark.parametrize(("samples", "percent"), [(None, 1.5), (16, 2.0), (8, 3.0)])
def test_packs_of_a_vlm_mix(samples: int | None, percent: float) -> None:
    sizes, limits = vlm_problem(20_000, samples)
    bound, _ = joint_bound(sizes, limits, NAMES[: len(limits)])
    count = assert_plan(packed(sizes, limits, 1), sizes, limits)
    assert count <= bound * (1 + percent / 100)


def test_few_items_over_a_limit_are_moved() -> None:
    """Repairing costs next to nothing where a limit hardly binds."""
    lengths = np.random.default_rng(0).lognormal(6, 1, 20_000).clip(16, 8192).astype(np.int64)
    images = np.where(np.arange(20_000) % 80 == 0, 20, 0)
    sizes, limits = np.stack([lengths, images], axis=1), np.array([8192, 32])
    tokens = best_fit_decreasing(Histogram.of(lengths), 8192).total_packs
    names = [name for name, _ in alternatives(sizes, limits, 1)]
    assert names == ["repair", "deal", "best-fit"]  # else nothing is over the limit here
    _, repaired = next(alternatives(sizes, limits, 1))
    assert assert_plan(repaired, sizes, limits) <= 1.01 * tokens


def test_items_that_fill_much_of_a_pack() -> None:
    """Best fit is the alternative here: dealing evenly leaves room that nothing fits."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 8193, 9000)
    images = np.where(rng.random(9000) < 0.5, rng.integers(1, 9, 9000), 0)
    sizes, limits = np.stack([lengths, images], axis=1), np.array([8192, 12])
    plans = {name: assert_plan(p, sizes, limits) for name, p in alternatives(sizes, limits, 1)}
    bound, _ = joint_bound(sizes, limits, NAMES[:2])
    assert plans["best-fit"] <= 1.01 * bound < plans["deal"]
    assert assert_plan(packed(sizes, limits, 1), sizes, limits) == min(plans.values())


def test_the_alternative_with_the_fewest_packs_is_taken() -> None:
    """Short items of a few images each: images alone decide, and only best fit fills them."""
    rng = np.random.default_rng(0)
    sizes = np.stack([rng.integers(10, 60, 9000), rng.integers(1, 9, 9000)], axis=1)
    limits = np.array([8192, 12])
    plans = {name: assert_plan(p, sizes, limits) for name, p in alternatives(sizes, limits, 1)}
    assert plans["best-fit"] < 0.97 * plans["deal"]
    assert assert_plan(packed(sizes, limits, 1), sizes, limits) == plans["best-fit"]


def test_input_order_does_not_change_the_number_of_packs_much() -> None:
    sizes, limits = vlm_problem(5000)
    shuffled = np.random.default_rng(0).permutation(len(sizes))
    counts = [int(packed(s, limits, 1).max()) for s in (sizes, sizes[shuffled])]
    assert abs(counts[0] - counts[1]) <= 0.01 * counts[0]


def test_no_items() -> None:
    assert len(packed(np.empty((0, 3), np.int64), np.array([5, 5, 5]), 0)) == 0


@pytest.mark.parametrize("sizes", [[[6, 0]], [[1, 6]], [[0, 1]], [[1, -1]]])
def test_impossible_items_are_refused(sizes: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="sizes must lie in"):
        packed(np.array(sizes), np.array([5, 5]), 0)
