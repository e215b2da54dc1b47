"""Even out a second cost over packs without touching the plan: equal lengths trade places.

A plan on counts says only how long the sample in each slot is. Which of the samples of that length
goes there is free, so what else they cost, their images for one, can be dealt out evenly. Length
by length, longest first, the costliest sample goes to the pack that has cost least so far: the
greedy rule for identical machines (Graham, 1969, "Bounds on multiprocessing timing anomalies"),
within each length.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int64s
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
    """
    item = np.arange(len(pack))
    if len(pack) == 0:
        return item
    starts = np.concatenate([[0], np.flatnonzero(np.diff(length)) + 1])
    ends = np.append(starts[1:], len(pack))
    varied = np.maximum.reduceat(cost, starts) != np.minimum.reduceat(cost, starts)
    if not varied.any():
        return item
    rank = np.empty(int(pack.max()) + 1, np.int64)  # packs stand by it where they cost the same
    rank[permutation(len(rank), key)] = np.arange(len(rank))
    total = np.zeros_like(rank)  # of each pack, by its rank
    rank = rank[pack]
    counted = 0
    for start, end in zip(starts[varied].tolist(), ends[varied].tolist(), strict=True):
        _add(total, rank[counted:start], cost[counted:start])  # lengths whose items cost the same
        counted = end
        costliest = start + np.argsort(-cost[start:end], kind="stable")
        slots = start + np.argsort(rank[start:end], kind="stable")
        packs = rank[slots]
        nth = np.arange(len(packs)) - np.searchsorted(packs, packs)
        together = np.frexp(nth)[1]  # bits: 0, 1, 2 2, 3 3 3 3, ...
        back = (nth % 2 == 1) & (together > 1)
        for number in range(int(together.max()) + 1):
            of_round = np.flatnonzero(together == number)
            held = total[packs[of_round]]
            held[back[of_round]] *= -1
            of_round = of_round[np.lexsort((held, nth[of_round]))]
            given, costliest = np.split(costliest, [len(of_round)])
            item[slots[of_round]] = given
            _add(total, packs[of_round], cost[given])
    return item


def _add(total: Int64s, pack: Int64s, cost: Int64s) -> None:
    if cost.any():
        np.add.at(total, pack, cost)
