"""Packs from patterns of classes: the rest of `lp`, when its linear program is solved.

A pattern names the classes of a pack's samples, each by the mean of its lengths. So packs of one
pattern are full on average, and which samples share one decides whether all of them fit. They are
made in lots: each slot takes samples from all over its class, cut into lots by length, and the lots
of the slots are put together by the rearrangement algorithm (Puccetti and Rüschendorf 2012,
"Computation of sharp bounds on the distribution of a function of dependent risks"): slot by slot,
the longest go where the other slots hold least. Some 1 % of the lots end above the capacity and
lose their shortest slot; what that leaves over, and what is in no class, is dealt by best fit.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int64s
from packidx.packing.counts import Histogram, PackRuns
from packidx.packing.strategies.decreasing import OpenPacks

_LOTS = 32  # of a pattern: more follow the lengths more closely, and take longer
_ROUNDS = 4  # of rearrangement; more change nothing
_SCATTER = 40_503  # 2^16 over the golden ratio, as Knuth hashes: multiples of it lie anywhere


def fill_patterns(
    histogram: Histogram, capacity: int, edges: Int64s, patterns: Int64s, num_packs: Int64s
) -> PackRuns:
    """Plan `histogram` along patterns of classes.

    Args:
        edges: int64 [k + 1], how many longer samples there are than those of each class, and than
            those that are in none.
        patterns: int64 [p, most], the classes of a pack's slots, padded with -1.
        num_packs: int64 [p], how many packs are made after each pattern.
    """
    nth, first, packs = _into_lots(histogram, capacity, edges, patterns, num_packs)
    pieces = np.stack([histogram.lengths[nth], first, packs, np.ones_like(packs)], axis=1)
    total, rooms = _close_up(pieces, capacity)
    left = histogram.counts.copy()
    np.subtract.at(left, nth, packs)
    rest = np.flatnonzero(left)
    shortest = int(histogram.lengths[rest[-1]]) if len(rest) else 1
    open_packs = OpenPacks(capacity, shortest, total)
    for room, begin, number in rooms.tolist():
        open_packs.add(room, (begin, number, 0))
    more: list[tuple[int, int, int, int]] = []
    for length, count in Histogram(histogram.lengths[rest], left[rest]).pairs():
        open_packs.fill_best(length, count)
        more.extend((length, begin, number, each) for begin, number, each, _ in open_packs.dealt)
        open_packs.dealt.clear()
    added = np.array(more, np.int64).reshape(-1, 4)
    return _to_runs(np.concatenate([pieces, added]), open_packs.total)


def _into_lots(
    histogram: Histogram, capacity: int, edges: Int64s, patterns: Int64s, num_packs: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Deal the classes to the patterns' slots; returns pieces, int64 [n] each: the number of a
    length, the first pack that gets one sample of it, and how many packs do."""
    pattern, size, number = _lots_of(num_packs)
    first_pack = np.cumsum(size * number) - size * number
    slots = patterns[pattern]
    row, slot = np.nonzero(slots >= 0)
    each = number[row]
    lot = _count_up(each)
    row, slot = np.repeat(row, each), np.repeat(slot, each)
    # A class goes to its slots in turns, so that each has lots of all of its lengths.
    of_class = slots[row, slot]
    order = np.lexsort(((2 * lot + 1 << 20) // number[row], of_class))
    row, slot, lot = row[order], slot[order], lot[order]
    wanted = np.bincount(of_class[order], size[row], len(edges) - 1).astype(np.int64)

    nth, ends = _deal_lots(histogram, edges, wanted)
    end = np.cumsum(size[row])
    begin = end - size[row]
    part = np.searchsorted(ends, begin, "right")
    filled = np.flatnonzero(part < len(ends))
    row, slot, lot, part = row[filled], slot[filled], lot[filled], part[filled]
    longest = np.zeros((*slots.shape, int(number.max(initial=0))), np.int64)
    longest[row, slot, lot] = histogram.lengths[nth[part]]
    place = _arrange_lots(longest, number, capacity)[row, slot, lot]
    kept = np.flatnonzero(place >= 0)
    row, part = row[kept], part[kept]
    begin = begin[filled][kept]
    end = np.minimum(begin + size[row], ends[-1])
    first = first_pack[row] + place[kept] * size[row] - begin

    num_parts = np.searchsorted(ends, end, "left") - part + 1  # lengths in each lot
    of_part = np.repeat(np.arange(len(part)), num_parts)
    part = part[of_part] + _count_up(num_parts)
    start = np.maximum(begin[of_part], (ends - np.diff(ends, prepend=0))[part])
    stop = np.minimum(end[of_part], ends[part])
    return nth[part], first[of_part] + start, stop - start


def _deal_lots(histogram: Histogram, edges: Int64s, wanted: Int64s) -> tuple[Int64s, Int64s]:
    """Samples that the slots get, longest first; `wanted` int64 [k] are the slots of each class.

    Where a class has too few samples, those of the next one take its slots, too; where it has too
    many, its shortest ones are left over.

    Returns parts of the histogram, int64 [n]: the number of the length, and the samples up to the
    end of the part.
    """
    supply = np.cumsum(np.diff(edges))
    dealt = supply + np.minimum(np.minimum.accumulate(np.cumsum(wanted) - supply), 0)
    kept = np.diff(dealt, prepend=0)
    ends = np.cumsum(histogram.counts)
    cuts = np.unique(np.concatenate([ends[ends < edges[-1]], edges]))
    begin, end = cuts[:-1], cuts[1:]
    of_class = np.searchsorted(edges, begin, "right") - 1
    sizes = np.clip(edges[of_class] + kept[of_class], begin, end) - begin
    return np.searchsorted(ends, begin, "right"), np.cumsum(sizes)


def _count_up(numbers: Int64s) -> Int64s:
    """0, 1, … below each of `numbers`, one after another."""
    starts = np.cumsum(numbers) - numbers
    return np.arange(numbers.sum()) - np.repeat(starts, numbers)


def _lots_of(num_packs: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(pattern, packs in each lot, lots), int64 [n] each: at least `_LOTS` equal ones where there
    are as many packs, and what these leave over in lots again."""
    parts = [np.empty((3, 0), np.int64)]
    left = num_packs.copy()
    while len(pattern := np.flatnonzero(left)):
        size = np.maximum(left[pattern] // _LOTS, 1)
        number = left[pattern] // size
        parts.append(np.stack([pattern, size, number]))
        left[pattern] -= size * number
    pattern, size, number = np.concatenate(parts, axis=1)
    return pattern, size, number


def _arrange_lots(longest: Int64s, number: Int64s, capacity: int) -> Int64s:
    """The place of each lot in its row, int64 [rows, slots, lots]; -1 where it had to give way.

    Args:
        longest: int64 [rows, slots, lots], the longest length in each, descending; 0: it is empty.
        number: int64 [rows], places of a row.
    """
    width = longest.shape[2]
    places = np.arange(width)
    beyond = np.where(places < number[:, None], 0, 1 << 40)
    held, lots = np.zeros_like(longest), np.zeros_like(longest)  # the lot in each place
    total = np.zeros_like(beyond)
    for turn in range(_ROUNDS):
        for slot in range(longest.shape[1]):
            total -= held[:, slot]
            # They begin in any order: one by length ends with many above the capacity.
            given = total if turn else (slot + 1) * (places + 1) * _SCATTER % (1 << 16)
            order = np.argsort(given + beyond, axis=1, kind="stable")
            np.put_along_axis(held[:, slot], order, longest[:, slot], axis=1)
            np.put_along_axis(lots[:, slot], order, places[None], axis=1)
            total += held[:, slot]
    row, place = np.nonzero(total > capacity)
    while len(row):
        lengths = held[row, :, place]
        slot = np.where(lengths > 0, lengths, capacity + 1).argmin(axis=1)
        held[row, slot, place] = 0
        over = held[row, :, place].sum(axis=1) > capacity
        row, place = row[over], place[over]
    result = np.empty_like(lots)
    np.put_along_axis(result, lots, np.where(held > 0, places, -1), axis=2)
    return result


def _close_up(pieces: Int64s, capacity: int) -> tuple[int, Int64s]:
    """Renumber the packs so that none is empty (in place); returns their number, and the rooms
    left, int64 [n, 3]: room, first pack, packs."""
    lengths, first, packs, _ = pieces.T
    edges = np.unique(np.concatenate([first, first + packs]))
    low = np.searchsorted(edges, first)
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, low, lengths)
    np.subtract.at(change, np.searchsorted(edges, first + packs), lengths)
    used = np.cumsum(change)[:-1]
    sizes = np.where(used > 0, np.diff(edges), 0)
    start = np.cumsum(sizes) - sizes
    pieces[:, 1] = start[low]
    rooms = np.stack([capacity - used, start, sizes], axis=1)
    return int(sizes.sum()), rooms[used > 0]


def _to_runs(columns: Int64s, total: int) -> PackRuns:
    """The pieces in the order of dealing, split where their packs differ in what they hold."""
    columns = columns[np.argsort(-columns[:, 0], kind="stable")]
    _, first, packs, each = columns.T
    edges = np.unique(np.concatenate([first, first + packs]))
    low = np.searchsorted(edges, first)
    num_parts = np.searchsorted(edges, first + packs) - low
    piece = np.repeat(np.arange(len(columns)), num_parts)
    span = low[piece] + _count_up(
        num_parts
    )  # each part covers one stretch between neighbouring edges

    by_span = np.argsort(span, kind="stable")
    held = np.cumsum(each[piece[by_span]]) - each[piece[by_span]]
    new_span = np.diff(span[by_span], prepend=-1) != 0
    position = np.empty(len(piece), np.int64)
    position[by_span] = held - np.maximum.accumulate(np.where(new_span, held, 0))

    starts = (np.diff(piece, prepend=-1) != 0) | (np.diff(position, prepend=-1) != 0)
    at = np.flatnonzero(starts)
    last = np.append(at[1:], len(piece)) - 1
    begin, end = edges[span[at]], edges[span[last] + 1] if len(at) else edges[:0]
    return PackRuns(begin, end - begin, each[piece[at]], position[at], total)
