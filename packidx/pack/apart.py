"""Copies of one sample never share a pack: where chance put two together, equals are exchanged.

Best fit puts equals together, and nothing equals a sample as its copies do. So items that share a
pack with another copy change places with items of exactly their size, all of them at once and in
rounds, each pack once per round. What finds no partner (few samples, many copies) goes to packs of
its own: the first copies of all such samples, then the second ones, and so on; where that is much,
all items are packed so, if this needs fewer packs.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Bools, Int32s, Int64s
from packidx.hashing import hash_ints
from packidx.pack.slots import Slots, dense_positions
from packidx.pack.strategies.caps.capped import capped
from packidx.pack.strategies.in_order import window_fit

_ROUNDS = 24
_MANY = 0.01  # share of the items that find no partner, above which all are packed in turns, too
_IDLE = 4  # rounds without an exchange, after which there is nothing left to exchange


def keep_apart(slots: Slots, sample: Int64s, sizes: Int64s, limits: Int64s, key: int) -> Slots:
    """`slots` with no two items of one sample in a pack.

    Args:
        slots: of the items.
        sample: int64 [n], of each item.
        sizes: int64 [n, d], of each item in every limited dimension.
        limits: int64 [d].
        key: seeds who exchanges with whom.
    """
    pack, item = slots.pack.astype(np.int64), slots.item.copy()
    clashes = _clashes(pack, sample[item])[0]
    if not len(clashes):
        return slots
    clashes = _exchange(pack, item, sample, sizes, clashes, key)
    if not len(clashes):
        return slots.with_items(item)
    pack[clashes] = slots.num_packs + _in_turns(
        sample[item[clashes]], sizes[item[clashes]], limits, key
    )
    if len(clashes) > _MANY * len(item):  # what they leave behind is half empty
        anew = _in_turns(sample[item], sizes[item], limits, key)
        pack = anew if anew.max() < pack.max() else pack
    positions = dense_positions(pack, np.lexsort((slots.position, pack)))
    return Slots(item, int(pack.max()) + 1, (pack.astype(np.int32), positions))


def _clashes(pack: Int64s, sample: Int64s) -> tuple[Int64s, Int64s]:
    """Slots whose sample is in their pack already, and all (pack, sample) pairs as sorted keys."""
    keys = (pack << 32) | sample
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    return order[1:][keys[1:] == keys[:-1]], keys


def _exchange(
    pack: Int64s, item: Int32s, sample: Int64s, sizes: Int64s, clashes: Int64s, key: int
) -> Int64s:
    """Exchange items of equal size in `item`, in place; returns the slots that still clash."""
    sized = sizes[item]
    by_size = np.lexsort(sized.T[::-1])
    changes = (sized[by_size][1:] != sized[by_size][:-1]).any(axis=1)
    firsts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    counts = np.diff(np.append(firsts, len(item)))
    group = np.empty(len(item), np.int64)  # of each slot, among slots of its size
    group[by_size] = np.repeat(np.arange(len(firsts)), counts)
    idle = 0
    for number in range(_ROUNDS):
        drawn = hash_ints(clashes, key + number) % counts[group[clashes]].astype(np.uint64)
        others = by_size[firsts[group[clashes]] + drawn.astype(np.int64)]
        keys = _clashes(pack, sample[item])[1]
        mine, theirs = sample[item[clashes]], sample[item[others]]
        good = ~_among(keys, pack[others], mine) & ~_among(keys, pack[clashes], theirs)
        good &= pack[others] != pack[clashes]
        slot, other = _disjoint(clashes[good], others[good], pack)
        item[slot], item[other] = item[other], item[slot]
        idle = 0 if len(slot) else idle + 1
        clashes = _clashes(pack, sample[item])[0]
        if not len(clashes) or idle == _IDLE:
            break
    return clashes


def _among(keys: Int64s, pack: Int64s, sample: Int64s) -> Bools:
    """Whether each `pack` holds an item of `sample`."""
    wanted = (pack << 32) | sample
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


def _disjoint(slot: Int64s, other: Int64s, pack: Int64s) -> tuple[Int64s, Int64s]:
    """Those of the pairs of slots of which no pack takes part in an earlier one."""
    both = np.concatenate([pack[slot], pack[other]])
    numbers = np.tile(np.arange(len(slot)), 2)
    packs, number = np.unique(both, return_inverse=True)
    earliest = np.full(len(packs), len(slot))
    np.minimum.at(earliest, number, numbers)
    first = earliest[number] == numbers
    alone = first[: len(slot)] & first[len(slot) :]
    return slot[alone], other[alone]


def _in_turns(sample: Int64s, sizes: Int64s, limits: Int64s, key: int) -> Int64s:
    """Pack numbers from 0: one item of every sample at a time, then the next one of each."""
    by_sample = np.argsort(sample, kind="stable")
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(sample[by_sample])) + 1])
    counts = np.diff(np.append(firsts, len(sample)))
    turn = np.empty(len(sample), np.int64)
    turn[by_sample] = np.arange(len(sample)) - np.repeat(firsts, counts)
    pack, first = np.empty(len(sample), np.int64), 0
    for chosen in np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1]):
        if len(limits) == 1:
            packs = window_fit(sizes[chosen], limits, len(chosen))
        else:
            packs = capped(sizes[chosen], limits, key)[1]
        pack[chosen] = first + packs
        first += int(packs.max()) + 1
    return pack
