"""Keeping further limits by exchanging items of equal length: the fill in tokens stays as it is.

A plan for tokens alone does not care which of the equally long items stands where. So an item that
is too much for a limit of its pack changes places with one as long, and no larger in any other
dimension, out of a pack that has room for the difference; then with one about as long, where both
packs have room for that. Partners are found at random, for all such items at once, in turns.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Bools, Int64s
from packidx.hashing import derive_key
from packidx.pack.strategies.caps.rooms import Rooms

_TURNS = 64
# Where fewer than this share of the items found a partner in so many turns, the next ones look
# further around them in the order of lengths: up to so many places.
_WORTH = 0.05
_TRIES = 4
_LIKE = 1024


def too_many(sizes: Int64s, rooms: Rooms, pack: Int64s, items: Int64s) -> Int64s:
    """Those of `items` (all, in a fixed order) that have to leave packs of negative room.

    The smallest in what is exceeded may stay, as many as all limits allow: so the fewest leave.
    """
    broken = rooms.rooms < 0  # [d, packs]
    suspects = items[np.any(broken, axis=0)[pack[items]]]
    share = sizes[suspects] / np.maximum(rooms.limits, 1)
    guilt = np.where(broken[:, pack[suspects]].T, share, 0).max(1, initial=0)
    ranked = suspects[np.lexsort((guilt, pack[suspects]))]
    leaving: Int64s = ranked[~_stays(sizes[ranked], pack[ranked], rooms.limits)]
    return leaving


def swap(sizes: Int64s, rooms: Rooms, pack: Int64s, order: Int64s, key: int) -> None:
    """Exchange items of equal and then of like length until no limit is exceeded, or hardly any
    partners are found.

    Args:
        sizes: int64 [n, d]; column 0 is the length.
        rooms: of the plan, negative where a limit is exceeded, never in tokens; updated.
        pack: int64 [n], each item's pack; updated.
        order: int64 [n], all items in a seeded order.
        key: seeds who is tried with whom.
    """
    others = order[np.argsort(sizes[order, 0], kind="stable")]  # equals stand together
    lengths = sizes[others, 0]
    moving = too_many(sizes, rooms, pack, order)
    margin = dry = 0
    for turn in range(_TURNS):
        if not len(moving):
            return
        begin = np.searchsorted(lengths, sizes[moving, 0], side="left") - margin
        count = np.searchsorted(lengths, sizes[moving, 0], side="right") + margin - begin
        start = derive_key(key, turn) >> 2
        nth = begin + (start % count + np.arange(len(moving))) % count
        partner = others[np.clip(nth, 0, len(others) - 1)]
        exchanged = _exchange(sizes, rooms, pack, moving, partner)
        if exchanged < _WORTH * len(moving):  # equals are used up, then those like them are
            dry += 1
            margin = 4 ** (dry // _TRIES) if dry >= _TRIES else 0
            if margin > _LIKE:
                return
        moving = too_many(sizes, rooms, pack, order)


def _exchange(sizes: Int64s, rooms: Rooms, pack: Int64s, moving: Int64s, partner: Int64s) -> int:
    """Exchange those pairs of items that may be; returns how many."""
    more = sizes[moving] - sizes[partner]
    fits = (more[:, 1:] >= 0).all(1) & (more[:, 1:] > 0).any(1)
    fits &= (rooms.rooms[:, pack[partner]] >= more.T).all(0)
    fits &= rooms.rooms[0, pack[moving]] >= -more[:, 0]
    pairs = np.flatnonzero(fits)
    # A pack takes part once, so that what it has room for is still true. No pack takes part on
    # both sides: a partner's has no negative room.
    pairs = pairs[np.unique(pack[partner[pairs]], return_index=True)[1]]
    pairs = pairs[np.unique(pack[moving[pairs]], return_index=True)[1]]
    item, other = moving[pairs], partner[pairs]
    rooms.take(-more[pairs], pack[item])
    rooms.take(more[pairs], pack[other])
    pack[item], pack[other] = pack[other], pack[item]
    return len(pairs)


def _stays(sizes: Int64s, pack: Int64s, limits: Int64s) -> Bools:
    """bool [n]: whether the items of a pack up to this one keep all limits; sorted by pack."""
    begin = np.flatnonzero(np.diff(pack, prepend=-1))
    counts = np.diff(begin, append=len(pack))
    total = np.cumsum(sizes, axis=0)
    before = np.repeat(total[begin] - sizes[begin], counts, axis=0)
    stays: Bools = np.all(total - before <= limits, axis=1)
    return stays
