"""Packing problems: items of one or several sizes, few enough to be solved exactly or many."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Problem = tuple[Int64s, Int64s]


def tiny_problems(max_capacity: int = 20) -> st.SearchStrategy[tuple[list[int], int]]:
    """Up to nine lengths and a capacity."""
    return st.integers(1, max_capacity).flatmap(
        lambda capacity: st.tuples(
            st.lists(st.integers(1, capacity), min_size=1, max_size=9), st.just(capacity)
        )
    )


def optimum(sizes: Int64s, limits: Int64s) -> int:
    """The fewest packs, by dynamic programming over subsets.

    Args:
        sizes: of at most 9 items, [n, d].
        limits: of a pack, [d].
    """
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


def fewest(lengths: list[int], capacity: int) -> int:
    """The same of lengths alone."""
    return optimum(np.array(lengths)[:, None], np.array([capacity]))


def problems(most: int = 60) -> st.SearchStrategy[Problem]:
    """Sizes and limits, 1 to 4 dimensions; every item fits alone."""

    def of(limits: list[int]) -> st.SearchStrategy[Problem]:
        rest = [st.one_of(st.just(0), st.integers(0, limit)) for limit in limits[1:]]
        item = st.tuples(st.integers(1, limits[0]), *rest)
        return st.lists(item, min_size=1, max_size=most).map(
            lambda items: (np.array(items, np.int64), np.array(limits, np.int64))
        )

    tokens = st.one_of(st.integers(1, 40), st.integers(1000, 2000))
    return st.tuples(tokens, st.lists(st.integers(0, 30), max_size=3)).flatmap(
        lambda limits: of([limits[0], *limits[1]])
    )


def assert_plan(pack: Int64s, sizes: Int64s, limits: Int64s) -> int:
    """Each item has one pack, the numbers are dense, every limit holds; the number of packs."""
    assert pack.dtype == np.int64 and pack.shape == (len(sizes),)
    count = int(pack.max()) + 1
    assert np.array_equal(np.unique(pack), np.arange(count))
    loads = np.zeros((count, len(limits)), np.int64)
    np.add.at(loads, pack, sizes)
    assert (loads <= limits).all()
    return count
