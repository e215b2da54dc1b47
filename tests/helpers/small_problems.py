"""Packing problems small enough to be solved exactly."""

from __future__ import annotations

from hypothesis import strategies as st


def tiny_problems(max_capacity: int = 20) -> st.SearchStrategy[tuple[list[int], int]]:
    """Up to nine lengths and a capacity."""
    return st.integers(1, max_capacity).flatmap(
        lambda capacity: st.tuples(
            st.lists(st.integers(1, capacity), min_size=1, max_size=9), st.just(capacity)
        )
    )


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
