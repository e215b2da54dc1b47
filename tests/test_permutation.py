"""The keyed permutation: a permutation, the same everywhere, and well mixed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packidx.hashing import derive_key, splitmix64
from packidx.permutation import permutation, permute


@given(st.integers(1, 2**62), st.booleans(), st.data())
def test_no_two_numbers_are_sent_to_one(size: int, several: bool, data: st.DataObject) -> None:
    """Under one key; and under a key for each value each stays inside."""
    drawn = data.draw(st.lists(st.integers(0, size - 1), max_size=20, unique=True))
    values = np.array(drawn, np.uint64)
    key = data.draw(st.integers(0, 2**64 - 1))
    keys = np.arange(len(values), dtype=np.uint64) ^ np.uint64(key) if several else key
    there = permute(values, size, keys)
    assert not len(values) or there.max() < size
    assert several or len({*there.tolist()}) == len(values)


def test_values_are_part_of_the_format() -> None:
    """Golden values: a change here changes the bytes of every plan."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # Vigna's reference implementation
    assert derive_key(0, "samples") == 0x1057B48EE3EA771F
    assert permutation(10, derive_key(0, "packs")).tolist() == [1, 3, 6, 2, 9, 5, 7, 8, 0, 4]
