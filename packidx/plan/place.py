"""From run-length records to every sample's place: no joins, no Python per sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packidx.mix import small_permutation
from packidx.plan.runs import Records

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_SORTED = 1 << 20  # items sorted at a time
_CHUNK = 1 << 16  # slots expanded at a time: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Slots:
    """Every item's place, in the order in which items are dealt out.

    Attributes:
        item: int32 [n].
        pack: int32 [n], provisional pack number.
        position: int32 [n], place in the pack.
        num_packs: packs.
        sums: of the packs by length alone, where these are known without looking at the items:
            int64 [num_packs] items, Σ length and Σ length².
    """

    item: Int32s
    pack: Int32s
    position: Int32s
    num_packs: int
    sums: tuple[Int64s, Int64s, Int64s] | None = None


def deal_order(lengths: NDArray[np.integer], key: int) -> Int32s:
    """Items by (length descending, seeded mix of the item's number), int32 [n].

    The items are shuffled, then sorted by length with a stable radix sort, 16 bits at a time.
    """
    order = small_permutation(len(lengths), key)
    longest = int(lengths.max(initial=0))
    rank = np.subtract(longest, lengths).astype(np.uint32 if longest >> 16 else np.uint16)
    for shift in range(0, max(1, longest.bit_length()), 16):
        digit = rank if not shift else (rank >> np.uint32(shift)).astype(np.uint16)
        order = _by_digit(order, digit.astype(np.uint16, copy=False))
    return order


def _by_digit(order: Int32s, digit: NDArray[np.uint16]) -> Int32s:
    """`order` sorted by ``digit[order]``, stably.

    Blocks that stay in the cache are sorted by themselves and then merged run by run, which is
    three times as fast as one sort of 16 million.
    """
    size = int(digit.max(initial=0)) + 1
    starts = range(0, len(order), _SORTED)
    counts = np.zeros((len(starts) + 1, size), np.int64)
    blocks = np.empty_like(order)
    for number, start in enumerate(starts):
        block = order[start : start + _SORTED]
        own = digit[block]
        counts[number + 1] = np.bincount(own, minlength=size)
        blocks[start : start + _SORTED] = block[np.argsort(own, kind="stable")]
    if len(starts) < 2:
        return blocks
    total = counts.sum(axis=0)
    # Where the runs of each block begin: after all smaller digits, and the same one before.
    first = (np.cumsum(total) - total + np.cumsum(counts, axis=0)).astype(np.int32)
    merged = np.empty_like(order)
    for number, start in enumerate(starts):
        sizes = counts[number + 1]
        place = np.repeat(first[number] - (np.cumsum(sizes) - sizes).astype(np.int32), sizes)
        place += np.arange(len(place), dtype=np.int32)
        merged[place] = blocks[start : start + _SORTED]
    return merged


def expand(records: Records, lengths: NDArray[np.integer], key: int) -> Slots:
    """Deal items of `lengths` [n], seeded by `key`, to the places of `records`."""
    counts = records.num_packs * records.per_pack
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    pack, position = np.empty(total, np.int32), np.empty(total, np.int32)
    first = 0
    while first < len(counts):
        begin = int(ends[first] - counts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _CHUNK)))
        part = slice(first, last)
        stop = int(ends[last - 1])
        repeats = counts[part]
        offset = np.arange(begin, stop) - np.repeat(ends[part] - repeats, repeats)
        if (records.per_pack[part] == 1).all():
            nth, within = offset, np.zeros_like(offset)
        else:
            nth, within = np.divmod(offset, np.repeat(records.per_pack[part], repeats))
        pack[begin:stop] = np.repeat(records.first_pack[part], repeats) + nth
        position[begin:stop] = np.repeat(records.position[part], repeats) + within
        first = last
    item = deal_order(lengths, key)
    sums = _sums(records, lengths[item[ends - counts]].astype(np.int64))
    return Slots(item, pack, position, records.total_packs, sums)


def joined(parts: list[Slots]) -> Slots:
    """Slots of several groups of items as one; the packs of each follow those before it."""
    if not parts:
        none = np.empty(0, np.int32)
        return Slots(none, none, none, 0)
    firsts = np.cumsum([0, *(part.num_packs for part in parts)])
    sums = None
    if all(part.sums is not None for part in parts):
        columns = zip(*(part.sums for part in parts if part.sums is not None), strict=True)
        sizes, lengths, squares = (np.concatenate(one) for one in columns)
        sums = sizes, lengths, squares
    return Slots(
        np.concatenate([part.item for part in parts]),
        np.concatenate(
            [part.pack + np.int32(first) for part, first in zip(parts, firsts[:-1], strict=True)]
        ),
        np.concatenate([part.position for part in parts]),
        int(firsts[-1]),
        sums,
    )


def _sums(records: Records, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """What the packs of `records` hold, each record's items being of one of `lengths`."""
    ends = records.first_pack + records.num_packs
    found = []
    for amount in (np.ones_like(lengths), lengths, lengths * lengths):
        steps = np.zeros(records.total_packs + 1, np.int64)
        np.add.at(steps, records.first_pack, amount * records.per_pack)
        np.subtract.at(steps, ends, amount * records.per_pack)
        found.append(np.cumsum(steps)[:-1])
    return found[0], found[1], found[2]


def from_packs(pack: Int64s, lengths: NDArray[np.integer], key: int) -> Slots:
    """Slots of items whose packs are known, ``pack`` int64 [n], dense from 0: longest first."""
    item = deal_order(lengths, key)
    of_slot = pack[item].astype(np.int32)
    num_packs = int(pack.max(initial=-1)) + 1
    by_pack = np.argsort(of_slot, kind="stable")
    sizes = np.bincount(of_slot, minlength=num_packs)
    position = np.empty(len(item), np.int32)
    begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
    position[by_pack] = np.arange(len(item)) - begin
    return Slots(item, of_slot, position, num_packs)
