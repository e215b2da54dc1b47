"""Packing under several limits at once: tokens, images, vision patches, samples per pack.

Where the plan for tokens alone happens to keep the other limits, it is the plan. Elsewhere there
are alternatives, and the one with the fewest packs is taken:

- *repair*: the plan for tokens alone, whose packs over a limit exchange items for others as long,
  and give away what is still too much. The best where a limit hardly binds;
- *deal*: as many empty packs as no plan can do without, filled in all dimensions at once by
  `packidx.pack.strategies.caps.rooms.assign_rooms`, the largest weighted sum of sizes first
  (Panigrahy, Talwar, Uyeda and Wieder, 2011, "Heuristics for vector bin packing"). What fits
  nowhere is dealt to further packs. The best where packs hold many items;
- *best-fit*: the same order, each item where it leaves the least weighted room. The best where
  packs hold few items or one limit alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Int64s, Ints
from packidx.hashing import derive_key
from packidx.pack.bounds import volume_packs
from packidx.pack.counts import Histogram
from packidx.pack.strategies.caps.rooms import Rooms, assign_rooms, best_fit_in_all, scarcity
from packidx.pack.strategies.caps.swaps import swap, too_many
from packidx.pack.strategies.decreasing import best_fit_decreasing
from packidx.permutation import permutation

# Best fit looks at every pack: of so many items only.
_CHUNK = 4096
# Repairing is for plans of which no more than this share of the packs breaks a limit, and for
# those of which so many still do when equally long items have been exchanged.
_SWAPPED = 0.5
_BROKEN = 0.1
# A plan this near the simplest bound is not worth another try.
_NEAR = 0.0075


def capped(
    sizes: Int64s, limits: Int64s, key: int, start: Int64s | None = None
) -> tuple[str, Int64s]:
    """Pack items so that every pack keeps all limits.

    Args:
        sizes: int64 [n, d]; column 0 is tokens, positive; the others are not negative.
        limits: int64 [d]; no single item exceeds one.
        key: seeds all choices among equals.
        start: int64 [n], a plan that keeps limit 0, to be used as it is where it keeps the others;
            by default best fit decreasing.

    Returns:
        the name of the alternative that was taken, and the pack of every item, int64 [n]; packs are
        numbered densely from 0.

    Raises:
        ValueError: an item exceeds a limit, has no tokens or a negative size.
    """
    if len(sizes) == 0:
        return "tokens", np.empty(0, np.int64)
    bound = volume_packs(sizes, limits)
    plans = alternatives(sizes, limits, key, start)
    name, best = next(plans)
    while (best.max() + 1 - bound) > _NEAR * bound and (more := next(plans, None)):
        if more[1].max() < best.max():  # the first one wins a tie
            name, best = more
    return name, best


def alternatives(
    sizes: Int64s, limits: Int64s, key: int, start: Int64s | None = None
) -> Iterator[tuple[str, Int64s]]:
    """The plans that `capped` chooses among, by name, each made when it is asked for.

    ``'tokens'`` alone if the plan for tokens keeps all limits, else ``'repair'`` if not too
    many packs break one, ``'deal'`` and ``'best-fit'``. Arguments and errors as for `capped`.
    """
    if (sizes[:, 0] <= 0).any() or (sizes < 0).any() or (sizes > limits).any():
        raise ValueError("every item needs tokens, and sizes must lie in 0..limit")
    tokens = _by_tokens(sizes[:, 0], int(limits[0]), key) if start is None else start
    rooms = Rooms.empty(int(tokens.max()) + 1, limits)
    rooms.take(sizes, tokens)
    broken = float((rooms.rooms < 0).any(0).mean())
    if not broken:
        yield "tokens", _dense(tokens)
        return
    order = _descending(sizes @ scarcity(sizes, limits), key)
    if broken <= _SWAPPED:
        repaired = _repaired(sizes, rooms, tokens, order, key)
        if repaired is not None:
            yield "repair", _dense(repaired)
    pack = np.empty(len(sizes), np.int64)
    pack[order] = _dealt(sizes[order], Rooms.empty(volume_packs(sizes, limits), limits), key)
    yield "deal", _dense(pack)
    pack = np.empty(len(sizes), np.int64)
    pack[order] = _best_fit(sizes[order], limits)
    yield "best-fit", _dense(pack)


def _by_tokens(lengths: Int64s, capacity: int, key: int) -> Int64s:
    """The pack of each item by best fit decreasing on `lengths` alone."""
    runs = best_fit_decreasing(Histogram.of(lengths), capacity)
    first, packs, each = runs.first_pack, runs.num_packs, runs.per_pack
    counts = packs * each
    nth = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)
    pack = np.empty(len(lengths), np.int64)
    pack[_descending(lengths, key)] = np.repeat(first, counts) + nth // np.repeat(each, counts)
    return pack


def _descending(values: Ints | NDArray[np.floating], key: int) -> Int64s:
    """Item numbers by value, largest first, equal ones in seeded order."""
    shuffled = permutation(len(values), derive_key(key, "items"))
    return shuffled[np.argsort(-values[shuffled], kind="stable")]


def _repaired(sizes: Int64s, rooms: Rooms, start: Int64s, order: Int64s, key: int) -> Int64s | None:
    """`start` with limits kept, or None where too much had to be moved; `rooms` follows."""
    pack = start.copy()
    swap(sizes, rooms, pack, order, derive_key(key, "swaps"))
    if (rooms.rooms < 0).any(0).mean() > _BROKEN:
        return None
    moved = too_many(sizes, rooms, pack, order)
    rooms.take(-sizes[moved], pack[moved])
    is_moved = np.zeros(len(sizes), bool)
    is_moved[moved] = True
    items = order[is_moved[order]]
    pack[items] = _dealt(sizes[items], rooms, key)
    return pack


def _dealt(sizes: Int64s, rooms: Rooms, key: int) -> Int64s:
    """The pack of every item, largest first: one of `rooms`, or a new one numbered behind them."""
    pack = assign_rooms(sizes, rooms, derive_key(key, 0))
    total, turn = rooms.num_packs, 0
    while len(left := np.flatnonzero(pack < 0)):
        turn += 1
        if len(left) <= _CHUNK:
            pack[left] = total + best_fit_in_all(sizes[left], rooms.limits, 1)
            break
        further = Rooms.empty(volume_packs(sizes[left], rooms.limits), rooms.limits)
        dealt = assign_rooms(sizes[left], further, derive_key(key, turn))
        pack[left] = np.where(dealt < 0, -1, total + dealt)
        total += further.num_packs
    return pack


def _best_fit(sizes: Int64s, limits: Int64s) -> Int64s:
    """Best fit in chunks, then once more of what stands in packs that a chunk left emptier."""
    chunks = -(-len(sizes) // _CHUNK)
    pack = best_fit_in_all(sizes, limits, chunks)
    if chunks > 1:
        weighted = sizes @ scarcity(sizes, limits)
        full = np.bincount(pack, weighted >> 20)  # exact: far below 2^53
        again = np.flatnonzero((full < 0.9 * full.max())[pack])
        if len(again) < len(sizes) // 2:
            rest = best_fit_in_all(sizes[again], limits, -(-len(again) // _CHUNK))
            pack[again] = rest + len(full)
    return pack


def _dense(pack: Int64s) -> Int64s:
    """The same packs without the empty ones."""
    used = np.bincount(pack) > 0
    return (np.cumsum(used) - 1)[pack]
