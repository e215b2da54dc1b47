"""From packs of length classes to a plan: real samples into the slots, best fit for the rest.

A slot of a class takes any sample up to the class's border. Slots are dealt in descending order, so
one that lacks samples of its class takes those of the next; samples that lack slots, and the short
ones no slot was made for, go by best fit into the rooms that are really left.
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int64s
from packidx.pack.counts import Histogram, PackRuns
from packidx.pack.strategies.open_packs import OpenPacks

# `packs` packs from number `first` on get `per_pack` samples of `length` each.
_Piece = tuple[int, int, int, int]  # length, first, packs, per_pack


def fill_patterns(
    histogram: Histogram, capacity: int, borders: Int64s, patterns: Int64s, num_packs: Int64s
) -> PackRuns:
    """Plan `histogram` along patterns of classes.

    Args:
        borders: int64 [k], the longest length of each class, descending; classes are numbered so.
        patterns: int64 [p, most], the classes of a pack's slots, padded with -1; the borders of a
            row add up to at most `capacity`.
        num_packs: int64 [p], how many packs are made after each pattern.
    """
    pieces, rest = _into_slots(histogram, borders, patterns, num_packs)
    total, rooms = _close_up(pieces, capacity)
    packs = OpenPacks(capacity, rest[-1][0] if rest else 1, total)
    for room, first, number in rooms:
        packs.add(room, (first, number, 0))
    for length, count in rest:
        packs.fill_best(length, count)
        pieces.extend((length, first, number, each) for first, number, each, _ in packs.dealt)
        packs.dealt.clear()
    return _to_runs(pieces, packs.total)


def _into_slots(
    histogram: Histogram, borders: Int64s, patterns: Int64s, num_packs: Int64s
) -> tuple[list[_Piece], list[tuple[int, int]]]:
    """Fill the slots; returns the pieces, and (length, count) of what is left, descending."""
    first_pack = np.cumsum(num_packs) - num_packs
    pattern, column = np.nonzero((patterns >= 0) & (num_packs > 0)[:, None])
    slot_class = patterns[pattern, column]
    order = np.argsort(slot_class, kind="stable")[::-1]
    pattern = pattern[order]
    columns = borders[slot_class[order]], first_pack[pattern], num_packs[pattern]
    slots: list[list[int]] = np.stack(columns, axis=1).tolist()
    pieces: list[_Piece] = []
    rest: list[tuple[int, int]] = []
    for length, count in histogram.pairs():
        left = count
        while left and slots and slots[-1][0] >= length:
            border, first, packs = slots.pop()
            taken = min(packs, left)
            pieces.append((length, first, taken, 1))
            left -= taken
            if taken < packs:
                slots.append([border, first + taken, packs - taken])
        if left:
            rest.append((length, left))
    return pieces, rest


def _close_up(pieces: list[_Piece], capacity: int) -> tuple[int, list[list[int]]]:
    """Renumber the packs so that none is empty (in place); returns their number, and the rooms
    left: (room, first pack, packs)."""
    if not pieces:
        return 0, []
    lengths, first, packs, _ = np.array(pieces, np.int64).T
    edges = np.unique(np.concatenate([first, first + packs]))
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, first), lengths)
    np.subtract.at(change, np.searchsorted(edges, first + packs), lengths)
    used = np.cumsum(change)[:-1]
    sizes = np.where(used > 0, np.diff(edges), 0)
    start = np.cumsum(sizes) - sizes
    moved = start[np.searchsorted(edges, first)]
    pieces[:] = [
        (length, now, packs, each)
        for (length, _, packs, each), now in zip(pieces, moved.tolist(), strict=True)
    ]
    rooms = np.stack([capacity - used, start, sizes], axis=1)[used > 0]
    return int(sizes.sum()), rooms.tolist()


def _to_runs(pieces: list[_Piece], total: int) -> PackRuns:
    """The pieces in the order of dealing, split where their packs differ in what they hold."""
    columns = np.array(pieces, np.int64).reshape(-1, 4)
    columns = columns[np.argsort(-columns[:, 0], kind="stable")]
    _, first, packs, each = columns.T
    edges = np.unique(np.concatenate([first, first + packs]))
    low = np.searchsorted(edges, first)
    num_parts = np.searchsorted(edges, first + packs) - low
    piece = np.repeat(np.arange(len(columns)), num_parts)
    part = np.arange(len(piece)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    span = low[piece] + part  # each part covers one stretch between neighbouring edges

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
