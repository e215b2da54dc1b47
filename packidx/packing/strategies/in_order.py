"""The rules that other trainers pack by, one item after another, to compare with.

Each rule takes sizes int64 [n, d] and limits int64 [d] (column 0 is tokens, every item fits alone)
and returns int64 [n], the pack of every item, numbered from 0 in order of opening. An item fits
where it fits in every dimension; of equally good packs the one opened first is taken. In one
dimension an item of `first_fit` and `window_fit` costs O(log n); else every open pack is looked at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Literal

import numpy as np

from packidx.arrays import Int64s


def next_fit(sizes: Int64s, limits: Int64s) -> Int64s:
    """Only the last pack is open: an item that does not fit closes it (LMMS Engine)."""
    totals = [np.cumsum(column).tolist() for column in sizes.T]
    begins = []
    begin = 0
    while begin < len(sizes):
        begins.append(begin)
        begin = min(
            bisect_right(total, (total[begin - 1] if begin else 0) + limit, lo=begin)
            for total, limit in zip(totals, limits.tolist(), strict=True)
        )
    is_first = np.zeros(len(sizes), np.int64)
    is_first[begins] = 1
    return np.cumsum(is_first) - 1


def first_fit(sizes: Int64s, limits: Int64s) -> Int64s:
    """Each item goes to the first pack opened in which it fits."""
    if sizes.shape[1] > 1:
        return _by_scan(sizes, limits, "first")
    return np.array(_first_fit(sizes[:, 0].tolist(), int(limits[0])), np.int64)


def window_fit(sizes: Int64s, limits: Int64s, window: int) -> Int64s:
    """Best fit decreasing by tokens in runs of `window` items (TRL, ms-swift, LLaMA-Factory)."""
    pack = np.empty(len(sizes), np.int64)
    opened = 0
    for begin in range(0, len(sizes), window):
        part = sizes[begin : begin + window]
        order = begin + np.argsort(-part[:, 0], kind="stable")
        if sizes.shape[1] > 1:
            packed = _by_scan(sizes[order], limits, "least")
        else:
            packed = np.array(_best_fit(sizes[order, 0].tolist(), int(limits[0])), np.int64)
        pack[order] = packed + opened
        opened += int(packed.max()) + 1
    return pack


def worst_fit(sizes: Int64s, limits: Int64s) -> Int64s:
    """Pack longest first, each item where most tokens are free (NeMo's "greedy knapsack")."""
    order = np.argsort(-sizes[:, 0], kind="stable")
    pack = np.empty(len(sizes), np.int64)
    pack[order] = _by_scan(sizes[order], limits, "most")
    return pack


def _by_scan(sizes: Int64s, limits: Int64s, rule: Literal["first", "least", "most"]) -> Int64s:
    """Each item, in the order given, in the first fitting pack or that of least or most tokens."""
    pack = np.empty(len(sizes), np.int64)
    rooms = np.repeat(limits[:, None], len(sizes), axis=1)
    opened = 0
    for item, size in enumerate(sizes.tolist()):
        fits = rooms[0, :opened] >= size[0]
        for room, part in zip(rooms[1:], size[1:], strict=True):
            if part:
                fits &= room[:opened] >= part
        able = np.flatnonzero(fits)
        if not len(able):
            chosen = opened
            opened += 1
        elif rule == "first":
            chosen = int(able[0])
        else:
            tokens = rooms[0, able]
            chosen = int(able[tokens.argmin() if rule == "least" else tokens.argmax()])
        rooms[:, chosen] -= sizes[item]
        pack[item] = chosen
    return pack


def _first_fit(lengths: list[int], capacity: int) -> list[int]:
    """A tree whose nodes know the most room of the packs below leads to the first that fits."""
    width = 1 << max(0, len(lengths) - 1).bit_length()
    most = [capacity] * (2 * width)  # node 1 is the root, leaf width + k is pack k
    pack = []
    for length in lengths:
        node = 1
        while node < width:
            node <<= 1
            if most[node] < length:
                node += 1
        pack.append(node - width)
        most[node] -= length
        while node > 1:
            room = most[node] if most[node] >= most[node ^ 1] else most[node ^ 1]
            node >>= 1
            if most[node] == room:  # nothing changes further up
                break
            most[node] = room
    return pack


def _best_fit(lengths: list[int], capacity: int) -> list[int]:
    """Open packs sorted by room: the first with enough is the best."""
    rooms: list[tuple[int, int]] = []  # (room, pack)
    pack = []
    opened = 0
    for length in lengths:
        at = bisect_left(rooms, (length, -1))
        if at == len(rooms):
            room, chosen = capacity, opened
            opened += 1
        else:
            room, chosen = rooms.pop(at)
        insort(rooms, (room - length, chosen))
        pack.append(chosen)
    return pack
