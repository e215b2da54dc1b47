"""Copies of one sample never share a pack: where chance put two together, equals are exchanged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packidx.plan.place import Slots

Int64s = NDArray[np.int64]

_TRIES = 256  # equal items looked at for an exchange, before a pack is opened


class _Members:
    """Which samples are in which packs, and what has been changed since."""

    def __init__(self, pack: Int64s, sample: Int64s) -> None:
        self._sorted = np.sort(self._key(pack, sample))
        self._changed: dict[int, int] = {}

    @staticmethod
    def _key(pack: Int64s, sample: Int64s) -> Int64s:
        return (pack << 32) | sample

    def count(self, pack: int, sample: int) -> int:
        """How many items of `sample` are in `pack`."""
        key = (pack << 32) | sample
        first, last = np.searchsorted(self._sorted, [key, key + 1])
        return int(last - first) + self._changed.get(key, 0)

    def add(self, pack: int, sample: int, number: int) -> None:
        key = (pack << 32) | sample
        self._changed[key] = self._changed.get(key, 0) + number


def keep_apart(slots: Slots, sample: Int64s, copy: Int64s, sizes: Int64s, limits: Int64s) -> Slots:
    """`slots` with no two copies of one sample in a pack.

    Args:
        slots: of the items.
        sample, copy: int64 [n], of each item.
        sizes: int64 [n, d], of each item in every limited dimension.
        limits: int64 [d].

    An item that shares a pack with another copy changes places with one of exactly its size; where
    there is none, it goes to a pack that is opened for such items.
    """
    pack = slots.pack.astype(np.int64)
    samples, copies = sample[slots.item], copy[slots.item]
    clashes = _clashes(pack, samples, copies)
    if not len(clashes):
        return slots
    members = _Members(pack, samples)
    item = slots.item.copy()
    sized = sizes[item]
    order = np.lexsort(sized.T[::-1])  # slots of one size stand together
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    homeless = []
    for slot in clashes.tolist():
        mine = int(sample[item[slot]])
        if members.count(int(pack[slot]), mine) < 2:
            continue  # an earlier exchange has solved it
        for other in _equals(slot, order, rank, sized):
            theirs = int(sample[item[other]])
            if members.count(int(pack[other]), mine) or members.count(int(pack[slot]), theirs):
                continue
            for at, leaving, coming in ((slot, mine, theirs), (other, theirs, mine)):
                members.add(int(pack[at]), leaving, -1)
                members.add(int(pack[at]), coming, 1)
            item[slot], item[other] = item[other], item[slot]
            break
        else:
            members.add(int(pack[slot]), mine, -1)
            homeless.append(slot)
    moved = _new_packs(homeless, sample[item], sizes[item], limits, slots.num_packs)
    pack[homeless] = moved
    number = max(slots.num_packs, int(pack.max()) + 1)
    position = slots.position if not homeless else _positions(pack, slots.position, number)
    return Slots(item, number, (pack.astype(np.int32), position))


def _clashes(pack: Int64s, sample: Int64s, copy: Int64s) -> Int64s:
    """Slots whose sample is in the pack already, as another copy."""
    order = np.lexsort((copy, sample, pack))
    p, s, c = pack[order], sample[order], copy[order]
    again = (p[1:] == p[:-1]) & (s[1:] == s[:-1]) & (c[1:] != c[:-1])
    return np.sort(order[1:][again])


def _equals(slot: int, order: Int64s, rank: Int64s, sized: Int64s) -> list[int]:
    """Slots of exactly the size of `slot`, nearest in rank first."""
    at, size = int(rank[slot]), sized[slot]
    found = []
    for step in (1, -1):
        near = order[at + step :: step][:_TRIES] if at + step >= 0 else order[:0]
        same = (sized[near] == size).all(axis=1)
        stop = len(same) if same.all() else int(np.argmin(same))
        found.append(near[:stop])
    return [int(other) for part in found for other in part]


def _new_packs(
    homeless: list[int], sample: Int64s, sizes: Int64s, limits: Int64s, first: int
) -> list[int]:
    """Pack numbers from `first` on, first fit, no sample twice in one."""
    rooms: list[Int64s] = []
    inside: list[set[int]] = []
    found = []
    for slot in homeless:
        size, mine = sizes[slot], int(sample[slot])
        at = 0
        while at < len(rooms) and (mine in inside[at] or (size > rooms[at]).any()):
            at += 1
        if at == len(rooms):
            rooms.append(limits.copy())
            inside.append(set())
        rooms[at] = rooms[at] - size
        inside[at].add(mine)
        found.append(first + at)
    return found


def _positions(pack: Int64s, before: NDArray[np.int32], num_packs: int) -> NDArray[np.int32]:
    """Dense places again, in the order that was."""
    order = np.lexsort((before, pack))
    sizes = np.bincount(pack, minlength=num_packs)
    position = np.empty(len(pack), np.int32)
    position[order] = np.arange(len(pack)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return position
