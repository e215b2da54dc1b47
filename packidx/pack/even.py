"""Even out a second cost over packs without touching the plan: equal lengths trade places.

A plan on counts says only how long the sample in each slot is. Which of the samples of that length
goes there is free, so what else they cost, their images for one, can be dealt out evenly. Length
by length, longest first, the costliest sample goes to the pack that has cost least so far: the
greedy rule for identical machines (Graham, 1969, "Bounds on multiprocessing timing anomalies"),
within each length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packidx.arrays import Bools, Int64s
from packidx.permutation import permutation


def even_out(pack: Int64s, length: Int64s, cost: Int64s, key: int) -> Int64s:
    """Return which item to put into each slot so that packs cost alike.

    A pack's slots of one length are served in rounds, one sample each: the first, the second, then
    third and fourth, fifth to eighth and so on together, there and back, without a look at the
    costs between them. Packs of equal cost are served in an order that `key` seeds, items of equal
    cost in theirs.

    Args:
        pack: int64 [n], the pack of each slot, from 0.
        length: int64 [n], of each slot, descending.
        cost: int64 [n], of the item that stands in each slot at first.
        key: any 64-bit integer.

    Returns:
        int64 [n], a permutation: the number of the slot where each slot's new item stood at first.

    Raises:
        ValueError: the lengths do not descend.
    """
    item = np.arange(len(pack))
    if len(pack) == 0:
        return item
    if np.any(length[1:] > length[:-1]):
        raise ValueError("slots must stand by length, longest first")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(length)) + 1])
    ends = np.append(starts[1:], len(pack))
    varied = np.maximum.reduceat(cost, starts) != np.minimum.reduceat(cost, starts)
    if not varied.any():
        return item
    ranks = np.empty(int(pack.max()) + 1, np.int64)  # a stable sort by them breaks ties by the seed
    ranks[permutation(len(ranks), key)] = np.arange(len(ranks))
    rank = ranks[pack]
    slots, bounds = _rounds(
        rank, np.repeat(varied, ends - starts), np.repeat(starts, ends - starts)
    )
    packs = _Packs(np.zeros(int(rank.max()) + 1, np.int64))
    counted = at = 0
    for start, end in zip(starts[varied].tolist(), ends[varied].tolist(), strict=True):
        packs.add(rank[counted:start], cost[counted:start])  # lengths whose items cost the same
        counted = end
        costliest = start + np.argsort(-cost[start:end], kind="stable")
        while at + 1 < len(bounds) and start < end:
            served = slots[bounds[at] : bounds[at + 1]]
            served = served[packs.order(rank[served])]
            given = costliest[: len(served)]
            costliest = costliest[len(served) :]
            item[served] = given
            packs.add(rank[served], cost[given])
            start += len(served)
            at += 1
    return item


@dataclass(frozen=True, slots=True)
class _Packs:
    """Running cost of each pack, int64 [packs]."""

    _cost: Int64s

    def add(self, pack: Int64s, cost: Int64s) -> None:
        if len(cost) and cost.any():
            np.add.at(self._cost, pack, cost)

    def order(self, pack: Int64s) -> Int64s:
        """The order in which slots in `pack` are served, given by rounds and in each by number."""
        cost = self._cost[pack]
        turns = np.flatnonzero(pack[1:] <= pack[:-1]) + 1  # where another round begins
        if not len(turns):
            return np.argsort(cost, kind="stable")
        nth = np.zeros(len(pack), np.int64)
        nth[turns] = 1
        nth = np.cumsum(nth)
        return np.lexsort((np.where(nth % 2, -cost, cost), nth))


def _rounds(rank: Int64s, wanted: Bools, start: Int64s) -> tuple[Int64s, Int64s]:
    """The `wanted` slots by (length, round, pack), and where in them rounds dealt together begin.

    `rank` is each slot's pack, and `start` the first slot of the same length, int64 [n].
    """
    slots = np.flatnonzero(wanted)
    of_length = start[slots]
    order = np.argsort(of_length * (int(rank.max()) + 1) + rank[slots], kind="stable")
    slots, of_length, packs = slots[order], of_length[order], rank[slots][order]
    at = np.arange(len(slots))
    new = np.ones(len(slots), bool)
    new[1:] = (np.diff(of_length) != 0) | (np.diff(packs) != 0)
    nth = at - np.maximum.accumulate(np.where(new, at, 0))  # the pack's how-manieth of this length
    most = int(nth.max()) + 1
    order = np.argsort(of_length * most + nth, kind="stable")
    slots, of_length, nth = slots[order], of_length[order], nth[order]
    together = np.frexp(nth)[1]  # bits: 0, 1, 2 2, 3 3 3 3, ...
    begin = np.flatnonzero((np.diff(of_length) != 0) | (np.diff(together) != 0)) + 1
    return slots, np.concatenate([[0], begin, [len(slots)]])
