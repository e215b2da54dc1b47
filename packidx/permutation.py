"""Keyed permutations of integers: packidx's only source of randomness.

A permutation of 0..2^bits-1 in pure integer arithmetic, so it is the same on every machine and
in every engine, needs no memory, and no two inputs collide. Rounds of multiply and xor-shift as
in MurmurHash3's finaliser (Appleby, 2011), keyed by splitmix64 (Steele et al., 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s, Ints, Uint64s, Uints
from packidx.hashing import splitmix64, splitmix64s

_ROUNDS = 4
_CHUNK = 1 << 15

# Below this many bits a handful of rounds cannot reach enough permutations (there are only 2^(k-1)
# odd multipliers); a wider domain costs a longer cycle walk and mixes well.
_MIN_BITS = 6
# Four rounds passed the chi-square tests of positions and neighbours in
# tests/index/order/test_epochs.py, three did not at 4 and 128 elements; six for margin.
_KEYED_ROUNDS = 6

_Rounds = Callable[[Uint64s, int, Uint64s, Uint64s], Uint64s]


@dataclass(frozen=True, slots=True)
class KeyedPermutation:
    """A keyed permutation of the integers below 2^bits; `keyed` makes one."""

    kind: type[np.uint32] | type[np.uint64]
    mask: np.unsignedinteger
    shift: np.unsignedinteger
    adds: list[np.unsignedinteger]
    muls: list[np.unsignedinteger]
    inverses: list[np.unsignedinteger]

    @classmethod
    def keyed(cls, bits: int, key: int) -> KeyedPermutation:
        """The permutation of a key.

        Args:
            bits: domain size in bits, 1 to 63.
            key: any 64-bit integer (see `derive_key`).
        """
        mask = (1 << bits) - 1
        # What overflows is masked away, so 32 bits give the same values, three times faster.
        kind: type[np.uint32] | type[np.uint64] = np.uint32 if bits <= 32 else np.uint64
        keys = [splitmix64(key ^ splitmix64(round_)) for round_ in range(2 * _ROUNDS)]
        muls = [(word | 1) & mask for word in keys[_ROUNDS:]]
        return cls(
            kind,
            kind(mask),
            # A shift of at least half the bits makes x ^ (x >> shift) its own inverse.
            kind((bits + 1) // 2),
            [kind(word & mask) for word in keys[:_ROUNDS]],
            [kind(mul) for mul in muls],
            [kind(pow(mul, -1, mask + 1)) for mul in muls],
        )

    def forward(self, values: Ints) -> Uints:
        """The permuted values, same shape: uint32 of a domain of up to 32 bits, else uint64."""
        x: Uints = values.astype(self.kind)
        for add, mul in zip(self.adds, self.muls, strict=True):
            x += add
            x *= mul
            x &= self.mask
            x ^= x >> self.shift
        return x

    def inverse(self, values: Ints) -> Uints:
        """The inputs whose `forward` is `values`, in the type that `forward` has."""
        x: Uints = values.astype(self.kind)
        for add, mul in zip(self.adds[::-1], self.inverses[::-1], strict=True):
            x ^= x >> self.shift
            x *= mul
            x -= add
            x &= self.mask
        return x


def permutation(count: int, key: int) -> Int64s:
    """A seeded permutation of ``arange(count)``: the inputs in the order of what each becomes."""
    blocks = [block.astype(np.int64) for block in permuted(count, key, max(count, 1))]
    return np.concatenate([*blocks, np.empty(0, np.int64)])


def permuted(count: int, key: int, size: int) -> Iterator[Ints]:
    """`permutation` in blocks of `size`, the last one shorter; int32 where that holds `count`."""
    bits = max(1, (count - 1).bit_length())
    mix = KeyedPermutation.keyed(bits, key)
    kind: type[np.int32] | type[np.int64] = np.int32 if bits < 32 else np.int64
    left, done = count, 0
    block: Ints = np.empty(min(size, left), kind)
    for start in range(0, 1 << bits, _CHUNK):  # in the processor's cache it is five times faster
        inputs = mix.inverse(np.arange(start, min(start + _CHUNK, 1 << bits)))
        if count < 1 << bits:
            inputs = inputs[inputs < count]
        while len(inputs):
            now = min(len(inputs), len(block) - done)
            block[done : done + now] = inputs[:now]
            inputs, done = inputs[now:], done + now
            if done == len(block):
                yield block
                left, done = left - done, 0
                block = np.empty(min(size, left), kind)


def permute(values: Uint64s, size: int, keys: Uint64s | int) -> Uint64s:
    """Return where a keyed permutation of [0, size) sends each of `values`.

    Args:
        values: uint64 numbers below `size`.
        size: number of elements that are permuted, at most 2^62.
        keys: one 64-bit key, or one per value (each key is another permutation).

    Rounds of odd multiplication, addition and xor-shift are bijections of k-bit integers; values
    that land outside [0, size) are sent through again until they are inside (cycle walking, Black
    and Rogaway, Ciphers with Arbitrary Finite Domains, 2002), less than twice on average for
    sizes above 32.
    """
    return _walked(values, size, keys, _rounds)


def unpermute(values: Uint64s, size: int, keys: Uint64s | int) -> Uint64s:
    """Return what `permute` sends to each of `values`, under the same keys."""
    return _walked(values, size, keys, _rounds_back)


def _walked(values: Uint64s, size: int, keys: Uint64s | int, rounds: _Rounds) -> Uint64s:
    """`values` sent through `rounds` once, and again as long as they are outside [0, size)."""
    if size <= 1:
        return np.zeros_like(values)
    bits = max(_MIN_BITS, (size - 1).bit_length())
    multipliers, addends = _constants(np.asarray(keys, np.uint64).reshape(-1), bits)
    result = values.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        chosen = todo if multipliers.shape[1] > 1 else slice(1)
        mixed = rounds(result[todo], bits, multipliers[:, chosen], addends[:, chosen])
        result[todo] = mixed
        todo = todo[mixed >= np.uint64(size)]
    return result


def _constants(keys: Uint64s, bits: int) -> tuple[Uint64s, Uint64s]:
    """Odd multipliers and addends of all rounds, each [rounds, keys]."""
    multipliers, addends = [], []
    state = keys
    for _ in range(_KEYED_ROUNDS):
        multipliers.append(splitmix64s(state))
        addends.append(splitmix64s(multipliers[-1]))
        state = splitmix64s(addends[-1])
    return np.array(multipliers) | np.uint64(1), np.array(addends) >> np.uint64(64 - bits)


def _rounds(x: Uint64s, bits: int, multipliers: Uint64s, addends: Uint64s) -> Uint64s:
    mask, shift = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    for multiplier, addend in zip(multipliers, addends, strict=True):
        x = (x * multiplier + addend) & mask
        x ^= x >> shift
    return x


def _rounds_back(x: Uint64s, bits: int, multipliers: Uint64s, addends: Uint64s) -> Uint64s:
    """The inverse of `_rounds`: a shift of at least half the bits undoes itself."""
    mask, shift = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    inverses = multipliers.copy()  # right in 3 bits, and in twice as many after each of Newton's
    for _ in range(5):
        inverses *= np.uint64(2) - multipliers * inverses
    for inverse, addend in zip(inverses[::-1], addends[::-1], strict=True):
        x = x ^ (x >> shift)
        x = ((x - addend) * inverse) & mask
    return x
