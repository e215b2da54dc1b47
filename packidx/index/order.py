"""The order of an epoch: a keyed bijection from order positions to pack numbers.

Nothing is shuffled in memory. A position is turned into a pack number by a few integer operations,
so any part of the order can be had on its own, on any rank, after any restart. Only wrapping uint64
arithmetic is used: the same numbers come out on every platform and in every NumPy version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from packidx.mix import derive_key, splitmix64

UInt64s = npt.NDArray[np.uint64]

# Below this many bits a handful of rounds cannot reach enough permutations (there are only 2^(k-1)
# odd multipliers); a wider domain costs a longer cycle walk and mixes well.
_MIN_BITS = 6
# Four rounds passed the chi-square tests of positions and neighbours in
# tests/test_sampler_order.py, three did not at 4 and 128 elements; six for margin.
_ROUNDS = 6


def _splitmix64(state: UInt64s) -> UInt64s:
    """`packidx.mix.splitmix64` of each element."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def order_key(snapshot_id: str, seed: int, epoch: int) -> int:
    """The 64-bit key of one epoch's order."""
    return derive_key(seed, epoch, snapshot_id)


def permute(values: UInt64s, size: int, keys: UInt64s | int) -> UInt64s:
    """Where a keyed permutation of [0, size) sends each of `values`.

    Args:
        values: uint64 numbers below `size`.
        size: number of elements that are permuted, at most 2^62.
        keys: one 64-bit key, or one per value (each key is another permutation).

    Rounds of odd multiplication, addition and xor-shift are bijections of k-bit integers; values
    that land outside [0, size) are sent through again until they are inside (cycle walking, Black
    and Rogaway, Ciphers with Arbitrary Finite Domains, 2002), less than twice on average for
    sizes above 32.
    """
    if size <= 1:
        return np.zeros_like(values)
    bits = max(_MIN_BITS, (size - 1).bit_length())
    multipliers, addends = _constants(np.asarray(keys, np.uint64).reshape(-1), bits)
    result = values.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        chosen = todo if multipliers.shape[1] > 1 else slice(1)
        mixed = _rounds(result[todo], bits, multipliers[:, chosen], addends[:, chosen])
        result[todo] = mixed
        todo = todo[mixed >= np.uint64(size)]
    return result


def _constants(keys: UInt64s, bits: int) -> tuple[UInt64s, UInt64s]:
    """Odd multipliers and addends of all rounds, each [rounds, keys]."""
    multipliers, addends = [], []
    state = keys
    for _ in range(_ROUNDS):
        multipliers.append(_splitmix64(state))
        addends.append(_splitmix64(multipliers[-1]))
        state = _splitmix64(addends[-1])
    return np.array(multipliers) | np.uint64(1), np.array(addends) >> np.uint64(64 - bits)


def _rounds(x: UInt64s, bits: int, multipliers: UInt64s, addends: UInt64s) -> UInt64s:
    mask, shift = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    for multiplier, addend in zip(multipliers, addends, strict=True):
        x = (x * multiplier + addend) & mask
        x ^= x >> shift
    return x


class EpochOrder:
    """Order position -> pack number, for one epoch, in O(1) memory.

    Full blocks of `block` packs are permuted, then the packs within each block under a key of
    their own; the one partial block stands at a seeded place among the full ones.

    Args:
        num_packs: packs in the epoch.
        block: `result.schedule_block` of the manifest.
        key: from `order_key`.
    """

    def __init__(self, num_packs: int, block: int, key: int) -> None:
        self.num_packs = num_packs
        self.block = max(1, min(block, num_packs))
        self.key = key
        self.full, self.tail = divmod(num_packs, self.block)
        self.tail_at = self.block * (splitmix64(key ^ 1) % (self.full + 1))

    def packs(self, positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Pack numbers, int64, at the order `positions` (each in [0, num_packs))."""
        where = np.asarray(positions).astype(np.uint64)
        block, tail_at = np.uint64(self.block), np.uint64(self.tail_at)
        in_tail = (where >= tail_at) & (where < np.uint64(self.tail_at + self.tail))
        regular = where - np.where(where >= tail_at, np.uint64(self.tail), np.uint64(0))
        slot = np.where(in_tail, np.uint64(0), regular // block)
        number = permute(slot, self.full, splitmix64(self.key ^ 2))
        inside = permute(regular % block, self.block, _splitmix64(number ^ np.uint64(self._inner)))
        result = number * block + inside
        if in_tail.any():
            offset = where[in_tail] - tail_at
            result[in_tail] = self.full * self.block + permute(offset, self.tail, self._tail_key)
        return result.astype(np.int64)

    @property
    def _inner(self) -> int:
        return splitmix64(self.key ^ 3)

    @property
    def _tail_key(self) -> int:
        return splitmix64(self.key ^ 4)
