"""The joint bound never exceeds the optimum, and sees what no single limit shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packidx.packing.counts import Histogram, joint_bound, lower_bound, volume_packs
from packidx.packing.strategies.capped import pack_capped

Int64s = NDArray[np.int64]
NAMES = ("tokens", "num_images", "vision_patches")


def packed(*problem: Any) -> Any:
    """The packs alone of what `pack_capped` returns."""
    start = np.arange(len(problem[0])) * 0
    pack = pack_capped(*problem, start)
    return start if pack is None else pack


def tiny_problems() -> st.SearchStrategy[tuple[Int64s, Int64s]]:
    def of(limits: tuple[int, ...]) -> st.SearchStrategy[tuple[Int64s, Int64s]]:
        item = st.tuples(st.integers(1, limits[0]), *(st.integers(0, m) for m in limits[1:]))
        return st.lists(item, min_size=1, max_size=8).map(
            lambda items: (np.array(items, np.int64), np.array(limits, np.int64))
        )

    return st.tuples(st.integers(1, 20), st.integers(0, 12), st.integers(0, 90)).flatmap(of)


def optimum(sizes: Int64s, limits: Int64s) -> int:
    """The fewest packs, by dynamic programming over subsets."""
    masks = np.arange(1 << len(sizes))
    chosen = masks[:, None] >> np.arange(len(sizes)) & 1
    fits = (chosen @ sizes <= limits).all(1).tolist()
    best = [0] * len(masks)
    for mask in range(1, len(masks)):
        part, best[mask] = mask, len(sizes)
        while part:
            if fits[part]:
                best[mask] = min(best[mask], 1 + best[mask ^ part])
            part = (part - 1) & mask
    return best[-1]


@given(tiny_problems())
def test_bound_optimum_plan(problem: tuple[Int64s, Int64s]) -> None:
    sizes, limits = problem
    bound, name = joint_bound(sizes, limits, NAMES)
    assert bound <= optimum(sizes, limits) <= int(packed(sizes, limits, 0).max()) + 1
    assert bound >= volume_packs(sizes, limits) > 0
    assert name.split(" ", 1)[0] in NAMES


def test_a_single_limit_gives_its_own_bound_and_name() -> None:
    sizes = np.array([[1, 3], [1, 3], [1, 3], [1, 0]])
    assert joint_bound(sizes, np.array([100, 5]), ["tokens", "num_images"]) == (
        3,
        "num_images " + lower_bound(Histogram.of(np.array([3, 3, 3])), 5)[1],
    )
    assert joint_bound(np.array([[3], [3], [4]]), np.array([5]), ["tokens"])[0] == 3
