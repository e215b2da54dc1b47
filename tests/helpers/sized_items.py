"""Items with several sizes each, for the tests of plans under several limits."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Problem = tuple[Int64s, Int64s]


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
