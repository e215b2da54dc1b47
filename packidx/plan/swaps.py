"""Keeping further limits by exchanging items of equal length: the fill in tokens stays as it is.

A plan for tokens alone does not care which of the equally long items stands where. So an item that
is too much for a limit of its pack changes places with one as long, and no larger in any other
dimension, out of a pack that has room for the difference. Partners are found at random, for
all such items at once, in several turns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packidx.mix import derive_key
from packidx.plan.rooms import Rooms

Int64s = NDArray[np.int64]

_TURNS = 64
# Turns end where fewer than this share of the items found a partner.
_WORTH = 0.02


def too_many(sizes: Int64s, rooms: Rooms, pack: Int64s, items: Int64s) -> Int64s:
    """Those of `items` (all, in a fixed order) that have to leave packs of negative room.

    The smallest in what is exceeded may stay, as many as all limits allow: so the fewest leave.
    """
    broken = rooms.rooms < 0  # [d, packs]
    suspects = items[np.any(broken, axis=0)[pack[items]]]
    share = sizes[suspects] / np.maximum(rooms.limits, 1)
    guilt = np.where(broken[:, pack[suspects]].T, share, 0).max(1, initial=0)
    ranked = suspects[np.lexsort((guilt, pack[suspects]))]
    return ranked[~_stays(sizes[ranked], pack[ranked], rooms.limits)]


def swap_equals(sizes: Int64s, rooms: Rooms, pack: Int64s, order: Int64s, key: int) -> None:
    """Exchange equally long items until no limit is exceeded or no more partners are found.

    Args:
        sizes: int64 [n, d]; equal in column 0 is equally long.
        rooms: of the plan, negative where a limit is exceeded; updated.
        pack: int64 [n], each item's pack; updated.
        order: int64 [n], all items in a seeded order.
        key: seeds who is tried with whom.
    """
    moving = too_many(sizes, rooms, pack, order)
    wanted = np.zeros(int(rooms.limits[0]) + 1, bool)
    wanted[sizes[moving, 0]] = True
    others = order[wanted[sizes[order, 0]]]
    others = others[np.argsort(sizes[others, 0], kind="stable")]  # equals stand together
    lengths = sizes[others, 0]
    for turn in range(_TURNS):
        if not len(moving):
            return
        begin = np.searchsorted(lengths, sizes[moving, 0], side="left")
        count = np.searchsorted(lengths, sizes[moving, 0], side="right") - begin
        start = derive_key(key, turn) >> 2
        partner = others[begin + (start % count + np.arange(len(moving))) % count]
        found = _exchange(sizes, rooms, pack, moving, partner)
        if turn % 8 == 7 and found < _WORTH * len(moving):
            return
        moving = too_many(sizes, rooms, pack, order)


def _exchange(sizes: Int64s, rooms: Rooms, pack: Int64s, moving: Int64s, partner: Int64s) -> int:
    """Exchange those pairs of items that may be; returns how many."""
    more = sizes[moving] - sizes[partner]
    fits = (more >= 0).all(1) & (more > 0).any(1)
    fits &= (rooms.rooms[:, pack[partner]] >= more.T).all(0)
    pairs = np.flatnonzero(fits)
    # A pack gives one item at a time, so that what it has room for is still true. No pack that
    # gives one also takes one: its room is not negative.
    _, first = np.unique(pack[partner[pairs]], return_index=True)
    pairs = pairs[first]
    one, other = moving[pairs], partner[pairs]
    rooms.take(-more[pairs], pack[one])
    rooms.take(more[pairs], pack[other])
    pack[one], pack[other] = pack[other], pack[one]
    return len(pairs)


def _stays(sizes: Int64s, pack: Int64s, limits: Int64s) -> NDArray[np.bool_]:
    """bool [n]: whether the items of a pack up to this one keep all limits; sorted by pack."""
    begin = np.flatnonzero(np.diff(pack, prepend=-1))
    counts = np.diff(begin, append=len(pack))
    total = np.cumsum(sizes, axis=0)
    before = np.repeat(total[begin] - sizes[begin], counts, axis=0)
    stays: NDArray[np.bool_] = np.all(total - before <= limits, axis=1)
    return stays
