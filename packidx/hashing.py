"""64-bit hashes of strings and integers that any engine, machine or language can compute again.

A string is read as 64-bit words: its number of UTF-8 bytes, then the bytes 8 at a time, little
endian, the last word filled up with zero bytes. With S = splitmix64 (Steele, Lea and Flood, Fast
Splittable Pseudorandom Number Generators, OOPSLA 2014, section 4, as in `packidx.permutation`) and
arithmetic modulo 2^64

    hash = S( sum over j of S(word_j xor S(j)) )        j = 0 for the number of bytes

Every word goes through a mix of its own position, so words may be mixed in any order and all at
once, and the sum is mixed again so that each of its bits depends on all of them. It is no
cryptographic hash: an attacker who chooses the strings can make two collide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int64s, Ints, Uint64s

NULL_HASH = 0
"""What stands for the hash of a null string."""

_BLOCK = 1 << 15  # words mixed at a time: the arrays stay in the processor's cache
_LITTLE = np.dtype("<u8")

_MASK64 = (1 << 64) - 1


def splitmix64s(values: Uint64s) -> Uint64s:
    """`splitmix64` of each value, uint64 [n]."""
    x = values + np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def hash_ints(values: Ints, key: int) -> Uint64s:
    """splitmix64(value xor key) of each integer, uint64 [n]; a bijection for any one `key`.

    Args:
        values: [n]; a negative one stands for its two's complement in 64 bits.
        key: any 64-bit integer (see `derive_key`).
    """
    out = np.empty(len(values), np.uint64)
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK].astype(np.int64).view(np.uint64)
        out[first : first + _BLOCK] = splitmix64s(block ^ np.uint64(key))
    return out


def hash_strings(array: pa.Array | pa.ChunkedArray) -> Uint64s:
    """The hash of each string's UTF-8 bytes, uint64 [n]; `NULL_HASH` for a null.

    Args:
        array: strings of any Arrow type, dictionary-encoded ones included; or nulls alone.

    Raises:
        TypeError: `array` holds something else.
    """
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([np.empty(0, np.uint64), *map(hash_strings, array.chunks)])
    if pa.types.is_dictionary(array.type):
        # One slot more, for null indices; a null in the dictionary itself hashes as one.
        known = np.append(hash_strings(array.dictionary), np.uint64(NULL_HASH))
        indices = array.indices.cast(pa.int64()).fill_null(len(known) - 1)
        taken: Uint64s = known[indices.to_numpy(zero_copy_only=False)]
        return taken
    if pa.types.is_null(array.type):
        return np.full(len(array), NULL_HASH, np.uint64)
    if array.type not in (pa.string(), pa.large_string(), pa.string_view()):
        raise TypeError(f"strings are hashed, and this is an array of {array.type}")
    hashes = _hash_values(array.cast(pa.large_string()))
    if array.null_count:
        hashes[np.asarray(array.is_null())] = NULL_HASH
    return hashes


def hash_numbered(names: Iterable[str]) -> Uint64s:
    """The hash of each name and how many equal ones stand before it, uint64 [n]."""
    before = Counter[str]()
    texts = []
    for name in names:
        texts.append(f"{before[name]} {name}")
        before[name] += 1
    return hash_strings(pa.array(texts, pa.string()))


def _hash_values(array: pa.Array) -> Uint64s:
    """The hashes of what lies between a large_string array's offsets, nulls or not."""
    out = np.empty(len(array), np.uint64)
    if not len(array):
        return out
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    for first, end in _split_blocks(offsets):
        begin, stop = int(offsets[first]), int(offsets[end])
        # A copy with room behind it: the last word is read whole and masked.
        padded = np.zeros(stop - begin + 8, np.uint8)
        padded[: stop - begin] = data[begin:stop]
        out[first:end] = _hash_block(padded, offsets[first : end + 1] - begin)
    return out


def _split_blocks(offsets: Int64s) -> Iterator[tuple[int, int]]:
    """Runs of strings of about `_BLOCK` words each, as (first, end)."""
    num_words = np.arange(len(offsets)) + (offsets - offsets[0]) // 8
    first, last = 0, len(offsets) - 1
    while first < last:
        end = int(np.searchsorted(num_words, num_words[first] + _BLOCK, "right")) - 1
        end = min(max(end, first + 1), last)
        yield first, end
        first = end


def _hash_block(data: NDArray[np.uint8], offsets: Int64s) -> Uint64s:
    """The hashes of the strings between `offsets`; 8 bytes of `data` stand behind the last one."""
    sizes = np.diff(offsets)
    num_words = -(-sizes // 8)
    ends = np.cumsum(num_words)
    number = np.arange(int(ends[-1])) - np.repeat(ends - num_words, num_words)  # of a word, from 0
    at = np.repeat(offsets[:-1], num_words) + 8 * number
    every = np.ndarray(len(data) - 7, _LITTLE, data, strides=(1,))  # a word from every byte on
    words = every[at].astype(np.uint64)
    has_tail = sizes % 8 != 0
    tail_bits = (8 * (sizes[has_tail] % 8)).astype(np.uint64)
    words[ends[has_tail] - 1] &= (np.uint64(1) << tail_bits) - np.uint64(1)
    mixed = splitmix64s(words ^ splitmix64s((number + 1).astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    total = sums[ends] - sums[ends - num_words]
    total += splitmix64s(sizes.astype(np.uint64) ^ np.uint64(splitmix64(0)))
    return splitmix64s(total)


def splitmix64(state: int) -> int:
    """The splitmix64 output for `state`, an integer below 2^64."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state ^ (state >> 31)


def derive_key(*parts: int | str) -> int:
    """One 64-bit key out of integers and words; every part and their order matter."""
    key = 0
    for part in parts:
        words = [part & _MASK64] if isinstance(part, int) else [len(part), *part.encode()]
        for word in words:
            key = splitmix64(key ^ word)
    return key


def is_below_share(hashes: Uint64s, share: Fraction) -> Bools:
    """Return whether hash < share * 2^64, bool [n], of uint64 hashes [n]; 0 <= share <= 1."""
    threshold = -(-(share.numerator << 64) // share.denominator)  # rounded up: hashes are integers
    if threshold >> 64:
        return np.ones(len(hashes), bool)
    return np.less(hashes, np.uint64(threshold))
