"""Dealing items of several sizes into packs with several rooms, many items at a time.

The rule is the dot product of Panigrahy, Talwar, Uyeda and Wieder (2011, "Heuristics for vector bin
packing", section 3): an item goes where the room lies in the direction of its own sizes, each
dimension weighted by how scarce it is. Looking at every pack for every item is quadratic; here each
item looks at a few. In a round the open packs are dealt out, in pseudo-random order, to the next
items, so that no two items see the same pack and all of them choose at once.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from packidx.mix import derive_key

Int64s = NDArray[np.int64]

# How many packs an item looks at, in one attempt after another, before it is left over: first a
# few, which makes large rounds, then as many as it takes to find the few packs that still fit.
_LOOKS = (64, 64, 256, 1024)


class Rooms:
    """What `count` packs have room for.

    Attributes:
        rooms: int64 [d, count], what is left of every limit.
        limits: int64 [d].
    """

    def __init__(self, count: int, limits: Int64s) -> None:
        self.limits = limits
        self.rooms = np.repeat(limits[:, None], count, axis=1)

    @property
    def num_packs(self) -> int:
        return int(self.rooms.shape[1])

    def take(self, sizes: Int64s, pack: Int64s) -> None:
        """Put items of `sizes` (int64 [n, d]) into `pack` (int64 [n]); room may become negative."""
        for room, size in zip(self.rooms, sizes.T, strict=True):
            # Sums of integers below 2^53: exact in any order.
            room -= np.bincount(pack, size, minlength=self.num_packs).astype(np.int64)


def deal(sizes: Int64s, rooms: Rooms, key: int) -> Int64s:
    """Deal items, in the order given, to the packs of `rooms`, which shrink accordingly.

    Args:
        sizes: int64 [n, d], usually the largest first.
        rooms: the packs.
        key: seeds the order in which packs are looked at.

    Returns:
        int64 [n], each item's pack, −1 where none of the packs it looked at has room.
    """
    pack = np.full(len(sizes), -1, np.int64)
    waiting = np.arange(len(sizes))
    for attempt, look in enumerate(_LOOKS):
        if not len(waiting) or not rooms.num_packs:
            break
        _attempt(sizes, waiting, rooms, pack, look, derive_key(key, attempt))
        waiting = waiting[pack[waiting] < 0]
    return pack


def _attempt(sizes: Int64s, items: Int64s, rooms: Rooms, pack: Int64s, look: int, key: int) -> None:
    """One try for each of `items`; writes `pack` and `rooms`."""
    # Nothing that is left to deal is smaller than this, per dimension.
    smallest = np.minimum.accumulate(sizes[items[::-1]], axis=0)[::-1]
    weights = scarcity(sizes, rooms.limits) / np.maximum(rooms.limits, 1)
    open_packs = np.arange(rooms.num_packs)
    at = turn = 0
    while at < len(items):
        if turn % 8 == 0:
            fits = (rooms.rooms[:, open_packs] >= smallest[at][:, None]).all(0)
            open_packs = open_packs[fits]
            if not len(open_packs):
                return
        seen = min(look, len(open_packs))
        batch = items[at : at + len(open_packs) // seen]
        window = _window(len(open_packs), len(batch) * seen, derive_key(key, turn))
        candidates = open_packs[window].reshape(len(batch), seen)
        chosen = _choose(sizes[batch], rooms, candidates, weights)
        placed = np.flatnonzero(chosen >= 0)
        pack[batch[placed]] = chosen[placed]
        rooms.rooms[:, chosen[placed]] -= sizes[batch[placed]].T  # no pack stands there twice
        at += len(batch)
        turn += 1


def _window(count: int, length: int, key: int) -> Int64s:
    """`length` distinct numbers below `count`: an arithmetic progression modulo `count`."""
    step = key % count | 1
    while gcd(step, count) != 1:
        step += 1
    start = (key >> 32) % count
    return (np.arange(length) * (step % count) + start) % count


def _choose(
    sizes: Int64s, rooms: Rooms, candidates: Int64s, weights: NDArray[np.float64]
) -> Int64s:
    """For each item its best candidate pack, −1 where none fits."""
    score = np.zeros(candidates.shape)
    fits = np.ones(candidates.shape, bool)
    for room, size, weight in zip(rooms.rooms, sizes.T, weights, strict=True):
        has = room[candidates]
        fits &= has >= size[:, None]
        score += has * (size * weight * weight)[:, None]
    score[~fits] = -1
    best = score.argmax(1)
    each = np.arange(len(sizes))
    return np.where(fits[each, best], candidates[each, best], -1)


def best_fit_in_all(sizes: Int64s, limits: Int64s) -> Int64s:
    """Pack items one by one, in the order given, each where the least room in sum would remain.

    Looks at every pack for every item: for a few thousand items.

    Args:
        sizes: int64 [n, d].
        limits: int64 [d].

    Returns:
        int64 [n], each item's pack, numbered in order of opening.
    """
    pack = np.empty(len(sizes), np.int64)
    rooms = np.repeat(limits[:, None], len(sizes), axis=1)
    weights = scarcity(sizes, limits) / np.maximum(limits, 1)
    total = np.full(len(sizes), float(weights @ limits))  # weighted sum of a pack's room
    opened = 0
    for item, size in enumerate(sizes):
        fits = np.flatnonzero((rooms[:, :opened] >= size[:, None]).all(0))
        at = int(fits[total[fits].argmin()]) if len(fits) else opened
        opened = max(opened, at + 1)
        rooms[:, at] -= size
        total[at] -= float(weights @ size)
        pack[item] = at
    return pack


def scarcity(sizes: Int64s, limits: Int64s) -> NDArray[np.float64]:
    """How much of each limit all items need, relative to the scarcest: float64 [d], in 0..1."""
    need: NDArray[np.float64] = sizes.sum(0) / np.maximum(limits, 1)
    most = float(need.max(initial=0))
    return need / most if most else need
