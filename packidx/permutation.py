"""Keyed permutations of integers: packidx's only source of randomness.

A permutation of 0..2^bits-1 in pure integer arithmetic, so it is the same on every machine and
in every engine, needs no memory, and no two inputs collide. Rounds of multiply and xor-shift as
in MurmurHash3's finaliser (Appleby, 2011), keyed by splitmix64 (Steele et al., 2014).
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int64s, Uint64s, Uints
from packidx.hashing import splitmix64s

_CHUNK = 1 << 15

# Below this many bits a handful of rounds cannot reach enough permutations (there are only 2^(k-1)
# odd multipliers); a wider domain costs a longer cycle walk and mixes well.
_MIN_BITS = 6
# Four rounds passed the chi-square tests of positions and neighbours in
# tests/index/order/test_epochs.py, three did not at 4 and 128 elements; six for margin.
_ROUNDS = 6


def draw_permutation(count: int, key: int) -> Int64s:
    """A seeded permutation of ``arange(count)``: the inputs in the order of what each becomes."""
    bits = _bits_of(count)
    multipliers, addends = _derive_constants(np.array([key], np.uint64), bits)
    # What overflows is masked away, so 32 bits give the same values, three times faster.
    unsigned: type[np.uint32] | type[np.uint64] = np.uint32 if bits <= 32 else np.uint64
    constants: list[Uints] = [
        part[:, 0].astype(unsigned) for part in (_invert_odd(multipliers), addends)
    ]
    order, done = np.empty(count, np.int64), 0
    for start in range(0, 1 << bits, _CHUNK):  # in the processor's cache it is five times faster
        values: Uints = np.arange(start, min(start + _CHUNK, 1 << bits), dtype=unsigned)
        inputs = _undo_rounds(values, bits, *constants)
        inputs = inputs[inputs < count]
        order[done : done + len(inputs)] = inputs
        done += len(inputs)
    return order


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
    if size <= 1:
        return np.zeros_like(values)
    bits = _bits_of(size)
    multipliers, addends = _derive_constants(np.asarray(keys, np.uint64).reshape(-1), bits)
    result = values.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        chosen = todo if multipliers.shape[1] > 1 else slice(1)
        mixed = _mix_rounds(result[todo], bits, multipliers[:, chosen], addends[:, chosen])
        result[todo] = mixed
        todo = todo[mixed >= np.uint64(size)]
    return result


def _bits_of(size: int) -> int:
    """Return the bits of the domain in which `size` numbers are permuted."""
    return max(_MIN_BITS, (size - 1).bit_length())


def _derive_constants(keys: Uint64s, bits: int) -> tuple[Uint64s, Uint64s]:
    """Odd multipliers and addends of all rounds, each [rounds, keys]."""
    multipliers, addends = [], []
    state = keys
    for _ in range(_ROUNDS):
        multipliers.append(splitmix64s(state))
        addends.append(splitmix64s(multipliers[-1]))
        state = splitmix64s(addends[-1])
    return np.array(multipliers) | np.uint64(1), np.array(addends) >> np.uint64(64 - bits)


def _invert_odd(multipliers: Uint64s) -> Uint64s:
    """The inverses of odd numbers, modulo 2^64."""
    inverses = multipliers.copy()  # right in 3 bits, and in twice as many after each of Newton's
    for _ in range(5):
        inverses *= np.uint64(2) - multipliers * inverses
    return inverses


def _mix_rounds(x: Uints, bits: int, multipliers: Uints, addends: Uints) -> Uints:
    mask, shift = x.dtype.type((1 << bits) - 1), x.dtype.type((bits + 1) // 2)
    for multiplier, addend in zip(multipliers, addends, strict=True):
        x = (x * multiplier + addend) & mask
        x ^= x >> shift
    return x


def _undo_rounds(x: Uints, bits: int, inverses: Uints, addends: Uints) -> Uints:
    """The inverse of `_mix_rounds`, in place: a shift of at least half the bits undoes itself."""
    mask, shift = x.dtype.type((1 << bits) - 1), x.dtype.type((bits + 1) // 2)
    for inverse, addend in zip(inverses[::-1], addends[::-1], strict=True):
        x ^= x >> shift
        x -= addend
        x *= inverse
        x &= mask
    return x
