"""Hashes against their definition; the keyed permutation, which is the same everywhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from packidx.hashing import NULL_HASH, derive_key, hash_ints, hash_strings, splitmix64
from packidx.permutation import draw_permutation, permute

TEXTS = st.lists(st.none() | st.text(max_size=40), max_size=30)
MASK = (1 << 64) - 1


def by_definition(text: str | None) -> int:
    """The hash as FORMAT.md states it."""
    if text is None:
        return NULL_HASH
    data = text.encode()
    words = [len(data)]
    words += [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return splitmix64(sum(splitmix64(word ^ splitmix64(j)) for j, word in enumerate(words)) & MASK)


@given(TEXTS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string()]))
def test_strings_hash_as_defined_whatever_their_array(
    texts: list[str | None], cut: int, kind: pa.DataType
) -> None:
    want = [by_definition(text) for text in texts]
    array = pa.array(texts, kind)
    assert hash_strings(array).tolist() == want
    assert hash_strings(array[cut:]).tolist() == want[cut:]
    assert hash_strings(array[cut:-1]).tolist() == want[cut:-1]
    assert hash_strings(pa.chunked_array([array[:cut], array[cut:]], kind)).tolist() == want
    assert hash_strings(array.dictionary_encode()[cut:]).tolist() == want[cut:]
    assert hash_strings(pa.array(texts, pa.string_view())).tolist() == want


def test_hashes_are_part_of_the_format() -> None:
    texts = ["", "a", "12345678", "123456789", "Grüße.jpg", None]
    assert hash_strings(pa.array(texts)).tolist() == [
        2558736989570252433,
        4453608089714624102,
        5156274954570471879,
        838613136775419173,
        8567491382153474722,
        0,
    ]
    assert hash_ints(np.array([0, 1, -1]), 7).tolist() == [
        splitmix64(7),
        splitmix64(6),
        9870940514099297810,
    ]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), st.integers(0, MASK))
def test_integers_hash_as_defined(values: list[int], key: int) -> None:
    want = [splitmix64(value & MASK ^ key) for value in values]
    assert hash_ints(np.array(values, np.int64), key).tolist() == want


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


def test_permutations_are_part_of_the_format() -> None:
    """Golden values: a change here changes the bytes of every plan."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # Vigna's reference implementation
    assert derive_key(0, "samples") == 0x1057B48EE3EA771F
    assert draw_permutation(10, derive_key(0, "packs")).tolist() == [1, 3, 6, 2, 9, 5, 7, 8, 0, 4]
