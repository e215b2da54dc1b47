"""Best-fit-decreasing on counts: as many packs as the item-level rule, at a histogram's cost.

Item-level best fit decreasing puts each sample, longest first, into the fullest pack it fits.
Equal samples behave alike: the first goes to a pack of the smallest sufficient room r, which then
is the fullest that still fits the next, until the pack is full; so ``r // length`` of them fill one
pack before the next pack of room r is touched. Packs of equal history are kept as one run
of consecutive numbers, split when only a part of a run receives samples.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from packidx.pack.histogram import Histogram
from packidx.pack.runs import PackRuns

# A run of packs with equal content: (first pack, number of packs, samples in each).
Run = tuple[int, int, int]


class OpenPacks:
    """Runs of packs by room, with the smallest sufficient room found by bisection."""

    def __init__(self, shortest: int) -> None:
        self._rooms: list[int] = []
        self._runs: dict[int, list[Run]] = {}
        self._shortest = shortest

    def add(self, room: int, run: Run) -> None:
        if room < self._shortest or run[1] == 0:  # nothing that is left to place fits
            return
        if room in self._runs:
            self._runs[room].append(run)
        else:
            insort(self._rooms, room)
            self._runs[room] = [run]

    def take(self, length: int) -> tuple[int, Run] | None:
        """Remove and return a run of the smallest room >= length."""
        at = bisect_left(self._rooms, length)
        if at == len(self._rooms):
            return None
        room = self._rooms[at]
        runs = self._runs[room]
        run = runs.pop()
        if not runs:
            del self._runs[room], self._rooms[at]
        return room, run


def best_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    if (
        len(histogram.lengths)
        and not 0 < histogram.lengths.min() <= histogram.lengths[0] <= capacity
    ):
        raise ValueError("every length must lie in 1..capacity")
    shortest = int(histogram.lengths[-1]) if len(histogram.lengths) else 1
    open_packs = OpenPacks(shortest)
    out: list[tuple[int, int, int, int]] = []
    total = 0
    for length, count in zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True):
        left = count
        while left:
            taken = open_packs.take(length)
            if taken is None:  # open just as many packs as the rest of this length needs
                needed = -(-left // (capacity // length))
                taken = capacity, (total, needed, 0)
                total += needed
            left -= fill(open_packs, out, taken, length, left)
    columns = np.array(out, np.int64).reshape(-1, 4).T
    return PackRuns(columns[0], columns[1], columns[2], columns[3], total)


def fill(
    open_packs: OpenPacks,
    out: list[tuple[int, int, int, int]],
    taken: tuple[int, Run],
    length: int,
    left: int,
) -> int:
    """Deal up to `left` samples to one run; returns how many were placed."""
    room, (first, packs, position) = taken
    per_pack = room // length
    full = min(packs, left // per_pack)
    placed = full * per_pack
    if full:
        out.append((first, full, per_pack, position))
        open_packs.add(room - per_pack * length, (first, full, position + per_pack))
    rest = left - placed
    if full < packs and rest:  # fewer than one pack's worth is left: one pack gets it
        out.append((first + full, 1, rest, position))
        open_packs.add(room - rest * length, (first + full, 1, position + rest))
        placed, full = left, full + 1
    open_packs.add(room, (first + full, packs - full, position))
    return placed
