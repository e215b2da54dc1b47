"""Packing under several limits at once: tokens, images, vision patches, samples per pack.

Where the plan for tokens alone happens to keep the other limits, it is the plan. Elsewhere there
are alternatives, and the one with the fewest packs is taken:

- *repair*: the plan for tokens alone, whose packs over a limit give their largest items away;
- *deal*: as many empty packs as no plan can do without, filled by `packidx.plan.rooms.deal` in all
  dimensions at once, largest items first, by the weighted sum of their sizes or by the
  largest of them (the two item orders of Panigrahy, Talwar, Uyeda and Wieder, 2011, "Heuristics
  for vector bin packing", section 3). What fits nowhere is dealt to further packs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packidx.mix import derive_key, permutation
from packidx.plan.best_fit import best_fit_decreasing
from packidx.plan.histogram import Histogram
from packidx.plan.joint import volume_packs
from packidx.plan.rooms import Rooms, best_fit_in_all, deal, scarcity

Int64s = NDArray[np.int64]

# So few items are placed one by one, looking at every pack.
_FEW = 2048


def capped(sizes: Int64s, limits: Int64s, key: int, start: Int64s | None = None) -> Int64s:
    """Pack items so that every pack keeps all limits.

    Args:
        sizes: int64 [n, d]; column 0 is tokens, positive; the others are not negative.
        limits: int64 [d]; no single item exceeds one.
        key: seeds all choices among equals.
        start: int64 [n], a plan that keeps limit 0, to be used as it is where it keeps the others;
            by default best fit decreasing.

    Returns:
        int64 [n], the pack of every item; packs are numbered densely from 0.

    Raises:
        ValueError: an item exceeds a limit, has no tokens or a negative size.
    """
    if len(sizes) == 0:
        return np.empty(0, np.int64)
    bound = volume_packs(sizes, limits)
    plans = alternatives(sizes, limits, key, start)
    _, best = next(plans)
    for _, pack in plans:
        if pack.max() < best.max():  # the first, simpler one wins a tie
            best = pack
        if best.max() + 1 == bound:
            break
    return best


def alternatives(
    sizes: Int64s, limits: Int64s, key: int, start: Int64s | None = None
) -> Iterator[tuple[str, Int64s]]:
    """The plans that `capped` chooses among, by name, each made when it is asked for.

    ``'tokens'`` alone if the plan for tokens keeps all limits, else ``'repair'``, ``'deal-sum'``,
    ``'deal-max'``. Arguments and errors as for `capped`.
    """
    if (sizes[:, 0] <= 0).any() or (sizes < 0).any() or (sizes > limits).any():
        raise ValueError("every item needs tokens, and sizes must lie in 0..limit")
    tokens = _by_tokens(sizes[:, 0], int(limits[0]), key) if start is None else start
    rooms = Rooms(int(tokens.max()) + 1, limits)
    rooms.take(sizes, tokens)
    if (rooms.rooms >= 0).all():
        yield "tokens", _dense(tokens)
        return
    share = sizes / np.maximum(limits, 1)
    weighted = share @ scarcity(sizes, limits)
    yield "repair", _dense(_repaired(sizes, rooms, tokens, _descending(weighted, key), key))
    yield "deal-sum", _dense(_dealt(sizes, limits, _descending(weighted, key), key))
    yield "deal-max", _dense(_dealt(sizes, limits, _descending(share.max(1), key), key))


def _by_tokens(lengths: Int64s, capacity: int, key: int) -> Int64s:
    """The pack of each item by best fit decreasing on `lengths` alone."""
    records = best_fit_decreasing(Histogram.of(lengths), capacity)
    first, packs, each = records.first_pack, records.num_packs, records.per_pack
    counts = packs * each
    nth = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)
    pack = np.empty(len(lengths), np.int64)
    pack[_descending(lengths, key)] = np.repeat(first, counts) + nth // np.repeat(each, counts)
    return pack


def _descending(values: NDArray[np.integer] | NDArray[np.floating], key: int) -> Int64s:
    """Item numbers by value, largest first, equal ones in seeded order."""
    mixed = permutation(len(values), derive_key(key, "items"))
    return mixed[np.argsort(-values[mixed], kind="stable")]


def _repaired(sizes: Int64s, rooms: Rooms, start: Int64s, order: Int64s, key: int) -> Int64s:
    """`start`, with items moved out of the packs of negative room; `rooms` follows."""
    broken = rooms.rooms < 0  # [d, packs]
    suspects = order[np.any(broken, axis=0)[start[order]]]
    share = sizes[suspects] / np.maximum(rooms.limits, 1)
    guilt = np.where(broken[:, start[suspects]].T, share, 0).max(1)
    # Within a pack the least guilty stay, as many as all limits allow: so the fewest move.
    ranked = suspects[np.lexsort((guilt, start[suspects]))]
    moved = ranked[~_stays(sizes[ranked], start[ranked], rooms.limits)]
    rooms.take(-sizes[moved], start[moved])
    is_moved = np.zeros(len(sizes), bool)
    is_moved[moved] = True
    pack = start.copy()
    items = order[is_moved[order]]
    pack[items] = _placed(sizes[items], rooms, key)
    return pack


def _stays(sizes: Int64s, pack: Int64s, limits: Int64s) -> NDArray[np.bool_]:
    """bool [n]: whether the items of a pack up to this one keep all limits; sorted by pack."""
    begin = np.flatnonzero(np.diff(pack, prepend=-1))
    counts = np.diff(begin, append=len(pack))
    total = np.cumsum(sizes, axis=0)
    before = np.repeat(total[begin] - sizes[begin], counts, axis=0)
    return np.all(total - before <= limits, axis=1)


def _dealt(sizes: Int64s, limits: Int64s, order: Int64s, key: int) -> Int64s:
    """All items into the fewest packs that can do, and into more where these do not."""
    pack = np.empty(len(sizes), np.int64)
    pack[order] = _placed(sizes[order], Rooms(volume_packs(sizes, limits), limits), key)
    return pack


def _placed(sizes: Int64s, rooms: Rooms, key: int) -> Int64s:
    """The pack of every item, largest first: one of `rooms`, or a new one numbered behind them."""
    pack = deal(sizes, rooms, derive_key(key, 0))
    total, turn = rooms.num_packs, 0
    while len(left := np.flatnonzero(pack < 0)):
        turn += 1
        if len(left) <= _FEW:
            pack[left] = total + best_fit_in_all(sizes[left], rooms.limits)
            break
        further = Rooms(volume_packs(sizes[left], rooms.limits), rooms.limits)
        dealt = deal(sizes[left], further, derive_key(key, turn))
        pack[left] = np.where(dealt < 0, -1, total + dealt)
        total += further.num_packs
    return pack


def _dense(pack: Int64s) -> Int64s:
    """The same packs without the empty ones."""
    used = np.bincount(pack) > 0
    return (np.cumsum(used) - 1)[pack]
