"""Plans under several limits at once: every limit holds, every item has one pack, few packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sized_items import Int64s, Problem, assert_plan, problems
from vlm_mix import vlm_mix

from packidx.packing.counts import joint_bound
from packidx.packing.strategies import capped as module
from packidx.packing.strategies.capped import best_fit_in_all, pack_capped

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


@given(problems(), st.integers(1, 9))
def test_best_fit_in_chunks_is_best_fit_of_each_chunk(problem: Problem, chunks: int) -> None:
    sizes, limits = problem
    together = best_fit_in_all(sizes, limits, chunks)
    assert len(np.unique(together)) == sum(
        len(np.unique(together[first::chunks])) for first in range(chunks)
    )
    one = best_fit_in_all(sizes, limits, 1)
    assert_plan(one, *problem)
    weights = module.scarcity_weights(sizes, limits)
    rooms: list[Int64s] = []  # the same, item by item
    for size, pack in zip(sizes, one.tolist(), strict=True):
        able = [k for k, room in enumerate(rooms) if (room >= size).all()]
        if not able:
            rooms.append(limits.copy())
        assert pack == (
            min(able, key=lambda k: int(rooms[k] @ weights)) if able else len(rooms) - 1
        )
        rooms[pack] -= size


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
    order = np.argsort(-(sizes @ module.scarcity_weights(sizes, limits)), kind="stable")
    dealt = len(np.unique(module._deal_all(sizes[order], limits, 1)))
    assert assert_plan(packed(sizes, limits, 1), sizes, limits) <= 1.01 * bound < dealt
