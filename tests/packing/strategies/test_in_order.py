"""Rules on items of several sizes: the peers' equal plain loops, and ours keeps every limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import Int64s, Problem, assert_plan, problems
from vlm_mix import vlm_mix

from packidx.packing.counts import joint_bound
from packidx.packing.strategies.capped import pack_capped
from packidx.packing.strategies.in_order import first_fit, next_fit, window_fit, worst_fit


def loop(sizes: Int64s, limits: Int64s, rule: str) -> list[int]:
    """One item after another, in the order given, looking at every pack."""
    rooms: list[Int64s] = []
    packs = []
    for size in sizes:
        able = [k for k, room in enumerate(rooms) if (room >= size).all()]
        if rule == "next":
            able = able[-1:] if able and able[-1] == len(rooms) - 1 else []
        elif rule == "least":
            able.sort(key=lambda k: (rooms[k][0], k))
        elif rule == "most":
            able.sort(key=lambda k: (-rooms[k][0], k))
        if not able:
            rooms.append(limits.copy())
        packs.append(able[0] if able else len(rooms) - 1)
        rooms[packs[-1]] -= size
    return packs


def decreasing(sizes: Int64s, limits: Int64s, rule: str) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item, 0])
    packs = dict(zip(order, loop(sizes[order], limits, rule), strict=True))
    return [packs[item] for item in range(len(sizes))]


@given(problems())
def test_rules_in_the_order_given(problem: Problem) -> None:
    assert next_fit(*problem).tolist() == loop(*problem, "next")
    assert first_fit(*problem).tolist() == loop(*problem, "first")
    for pack in (next_fit(*problem), first_fit(*problem)):
        assert_plan(pack, *problem)
        assert np.array_equal(np.unique(pack, return_index=True)[1].argsort(), np.unique(pack))


@given(problems())
def test_worst_fit_decreasing(problem: Problem) -> None:
    pack = worst_fit(*problem)
    assert_plan(pack, *problem)
    assert pack.tolist() == decreasing(*problem, "most")


@given(problems(), st.integers(1, 70))
def test_windows(problem: Problem, window: int) -> None:
    sizes, limits = problem
    expected: list[int] = []
    for begin in range(0, len(sizes), window):
        opened = max(expected, default=-1) + 1
        part = decreasing(sizes[begin : begin + window], limits, "least")
        expected += [opened + pack for pack in part]
    pack = window_fit(sizes, limits, window)
    assert_plan(pack, *problem)
    assert pack.tolist() == expected


NAMES = ("tokens", "num_images", "vision_patches", "samples")


def packed(sizes: Int64s, limits: Int64s, key: int, start: Int64s | None = None) -> Int64s:
    """The packs; `start` is one pack where it is not given, which keeps no limit for sure."""
    start = np.zeros(len(sizes), np.int64) if start is None else start
    pack = pack_capped(sizes, limits, key, start)
    return start if pack is None else pack


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
def test_a_plan_that_keeps_all_limits_is_taken_as_it_is(problem: Problem, key: int) -> None:
    pack = packed(*problem, key)
    assert pack_capped(*problem, key + 1, pack) is None


@pytest.mark.parametrize(("samples", "percent"), [(None, 1.5), (16, 2.0), (8, 3.0)])
def test_packs_of_a_vlm_mix(samples: int | None, percent: float) -> None:
    sizes, limits = vlm_problem(20_000, samples)
    bound, _ = joint_bound(sizes, limits, NAMES[: len(limits)])
    count = assert_plan(packed(sizes, limits, 1), sizes, limits)
    assert count <= bound * (1 + percent / 100)


@pytest.mark.parametrize(("tokens", "images"), [((1, 8193), 0.5), ((10, 60), 1.0)])
def test_items_that_best_fit_alone_packs_well(tokens: tuple[int, int], images: float) -> None:
    """They fill much of a pack, or images alone decide: dealing evenly leaves rooms unfilled."""
    rng = np.random.default_rng(0)
    held = np.where(rng.random(9000) < images, rng.integers(1, 9, 9000), 0)
    sizes, limits = np.stack([rng.integers(*tokens, 9000), held], axis=1), np.array([8192, 12])
    bound, _ = joint_bound(sizes, limits, NAMES[:2])
    assert assert_plan(packed(sizes, limits, 1), sizes, limits) <= 1.01 * bound
