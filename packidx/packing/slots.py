"""The slot of every sample, from runs of packs: no joins, no Python per sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import numpy as np

from packidx.arrays import Int32s, Int64s, Ints
from packidx.hashing import derive_key
from packidx.packing.counts import PackRuns
from packidx.permutation import draw_permutation, permute

_SORTED = 1 << 20  # items sorted at a time
_CHUNK = 1 << 16  # slots dealt at a time: they stay in the processor's cache


SlotChunk = tuple[slice, Ints, Ints]
"""Slots that follow one another; provisional pack number and position of each, int [n]."""


class Slots:
    """Every item's slot, in the order in which items are dealt out.

    Attributes:
        item: int32 [n].
        num_packs: packs.
        sums: of the packs by length alone, where these are known without looking at the items:
            int64 [num_packs] items, Σ length and Σ length².
    """

    def __init__(
        self,
        item: Int32s,
        num_packs: int,
        slots: PackRuns | tuple[Ints, Ints],
        sums: tuple[Int64s, Int64s, Int64s] | None = None,
    ) -> None:
        self.item, self.num_packs, self.sums = item, num_packs, sums
        self._slots = slots

    def with_items(self, item: Int32s) -> Slots:
        """The same slots for other items of the same lengths."""
        return Slots(item, self.num_packs, self._slots, self.sums)

    def chunks(self) -> Iterator[SlotChunk]:
        """All slots in chunks that fit the cache."""
        if isinstance(self._slots, PackRuns):
            yield from _chunks_of_slots(self._slots)
            return
        pack, position = self._slots
        for begin in range(0, len(self.item), _CHUNK):
            slots = slice(begin, begin + _CHUNK)
            yield slots, pack[slots], position[slots]

    @cached_property
    def pack(self) -> Int32s:
        """int32 [n], provisional pack number of each slot."""
        return self._of_chunks(1)

    @cached_property
    def position(self) -> Int32s:
        """int32 [n], position of each slot in its pack."""
        return self._of_chunks(2)

    def _of_chunks(self, number: Literal[1, 2]) -> Int32s:
        values = np.empty(len(self.item), np.int32)
        for chunk in self.chunks():
            values[chunk[0]] = chunk[number]
        return values


def deal_order(lengths: Ints, key: int) -> Int32s:
    """Items by length, descending, those of one length in a seeded order; int32 [n].

    The items are shuffled and sorted by length, stably. Many are cut into blocks first that the
    processor's cache holds, and that are merged when they are sorted: of n blocks, a power of two,
    each has one of any n neighbouring items, a seeded choice, and so comes from everywhere.
    """
    longest = int(lengths.max(initial=0))
    if longest >> 16:
        shuffled = draw_permutation(len(lengths), key)
        return shuffled[np.argsort(-lengths[shuffled], kind="stable")].astype(np.int32)
    size = 1 << max(0, -(-len(lengths) // _SORTED) - 1).bit_length()
    groups = -(-len(lengths) // size)
    rank = np.zeros(groups * size, np.uint16)
    np.subtract(longest, lengths, out=rank[: len(lengths)], casting="unsafe")
    turns = permute(np.arange(groups, dtype=np.uint64), 1 << 32, derive_key(key, "turn"))
    turn = (turns & np.uint64(size - 1)).astype(np.int32)
    starts = np.arange(0, len(rank), size, dtype=np.int32)
    blocks, counts = [], []
    for number in range(size):
        items = starts | turn ^ number
        order = draw_permutation(groups, derive_key(key, number) if number else key)
        if groups and items[-1] >= len(lengths):  # the last group lacks some
            order = order[order != groups - 1]
        own = rank[items][order]
        counts.append(np.bincount(own, minlength=longest + 1))
        blocks.append(items[order[np.argsort(own, kind="stable")]])
    return _merge_blocks(blocks, counts)


def _merge_blocks(blocks: list[Int32s], counts: list[Int64s]) -> Int32s:
    """Sorted blocks, with how many of each value they hold, as one: equal ones block by block."""
    if len(blocks) < 2:
        return blocks[0]
    sizes = np.stack(counts, axis=1)  # [values, blocks]
    value, number = np.nonzero(sizes)
    ends = np.cumsum(sizes, axis=0)[value, number]
    starts = ends - sizes[value, number]
    runs = zip(number.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return np.concatenate([blocks[block][start:stop] for block, start, stop in runs])


def deal_into(runs: PackRuns, lengths: Ints, key: int) -> Slots:
    """Deal items of `lengths` [n], seeded by `key`, to the slots of `runs`."""
    item = deal_order(lengths, key)
    counts = runs.num_packs * runs.per_pack
    packs, held = runs.content(lengths[item[np.cumsum(counts) - counts]].astype(np.int64))
    sizes, tokens, squares = (np.repeat(values, packs) for values in held)
    return Slots(item, runs.total_packs, runs, (sizes, tokens, squares))


def in_chunks(sizes: Int64s, most: int) -> Iterator[tuple[slice, slice]]:
    """Neighbouring groups of `sizes` items, fewer than `most` together or one alone, as slices of
    the groups and of their items."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        begin = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + most)))
        yield slice(first, last), slice(begin, int(ends[last - 1]))
        first = last


def _chunks_of_slots(runs: PackRuns) -> Iterator[SlotChunk]:
    counts = runs.num_packs * runs.per_pack
    for chosen, slots in in_chunks(counts, _CHUNK):
        repeats, each = counts[chosen], runs.per_pack[chosen]
        starts = np.cumsum(repeats) - repeats
        position = np.repeat(runs.position[chosen], repeats)
        if (each == 1).all():
            pack = np.repeat(runs.first_pack[chosen] - starts, repeats)
            pack += np.arange(len(pack))
        else:
            offset = np.arange(len(position)) - np.repeat(starts, repeats)
            pack, within = np.divmod(offset, np.repeat(each, repeats))
            pack += np.repeat(runs.first_pack[chosen], repeats)
            position += within
        yield slots, pack, position


def join_slots(groups: list[Slots]) -> Slots:
    """Slots of several groups of items as one; the packs of each follow those before it."""
    if len(groups) == 1:
        return groups[0]
    firsts = np.cumsum([0, *(group.num_packs for group in groups)])
    none = np.empty(0, np.int32)
    sums = None
    if groups and all(group.sums is not None for group in groups):
        columns = zip(*(group.sums for group in groups if group.sums is not None), strict=True)
        sizes, lengths, squares = (np.concatenate(column) for column in columns)
        sums = sizes, lengths, squares
    packs = [group.pack + np.int32(first) for group, first in zip(groups, firsts, strict=False)]
    positions = np.concatenate([none, *(group.position for group in groups)])
    items = np.concatenate([none, *(group.item for group in groups)])
    return Slots(items, int(firsts[-1]), (np.concatenate([none, *packs]), positions), sums)


def from_packs(pack: Ints, lengths: Ints, key: int) -> Slots:
    """Slots of items whose packs are known, ``pack`` int [n], dense from 0: longest first."""
    item = deal_order(lengths, key)
    of_slot = pack[item].astype(np.int32, copy=False)
    sizes = np.bincount(of_slot)
    positions = np.empty(len(of_slot), np.int32)
    nth = np.arange(len(of_slot)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    positions[np.argsort(of_slot, kind="stable")] = nth
    return Slots(item, len(sizes), (of_slot, positions))
