"""Worst-fit-decreasing on counts: the rule that NeMo Automodel calls a greedy knapsack.

Its ``greedy_knapsack`` (nemo_automodel/components/datasets/llm/neat_packing.py, 2025) keeps the
packs in a heap by their content and gives each sample, longest first, to the emptiest one; where
even that lacks the room, a new pack is opened. As packs are opened only then, the emptiest pack
of a new length's turn is rarely emptier than that length, and packs end up filled with equals.
"""

from __future__ import annotations

import numpy as np

from packidx.pack.histogram import Histogram
from packidx.pack.runs import PackRuns
from packidx.pack.strategies.best_fit import OpenPacks, Run, fill

Row = tuple[int, int, int, int]  # a record: first pack, number of packs, samples each, position


class PacksByRoom(OpenPacks):
    """Runs of packs by room, from both ends; an empty pack's run must be the last of the packs."""

    def emptiest(self) -> int:
        """The largest room, 0 without packs."""
        return self._rooms[-1] if self._rooms else 0

    def take_emptiest(self) -> tuple[int, Run]:
        """Remove and return a run of the largest room."""
        room = self._rooms[-1]
        return room, self._take_from(room)

    def take_exact(self, length: int) -> tuple[int, Run] | None:
        """Remove and return a run of packs that one sample of `length` fills."""
        return (length, self._take_from(length)) if length in self._runs else None

    def _take_from(self, room: int) -> Run:
        runs = self._runs[room]
        if len(runs) > 1:
            return runs.pop()
        taken = self.take(room)
        if taken is None:
            raise KeyError(room)
        return taken[1]


def deal_round(
    packs: PacksByRoom, out: list[Row], taken: tuple[int, Run], length: int, left: int
) -> int:
    """Deal up to `left` samples to a run, one to each pack; returns how many were placed."""
    room, (first, num_packs, position) = taken
    placed = min(num_packs, left)
    out.append((first, placed, 1, position))
    packs.add(room, (first + placed, num_packs - placed, position))
    packs.add(room - length, (first, placed, position + 1))
    return placed


def to_runs(out: list[Row], total_packs: int) -> PackRuns:
    """The rows as a plan."""
    columns = np.array(out, np.int64).reshape(-1, 4).T
    return PackRuns(columns[0], columns[1], columns[2], columns[3], total_packs)


def check_lengths(histogram: Histogram, capacity: int) -> None:
    """Raises ValueError unless every length lies in 1..capacity."""
    lengths = histogram.lengths
    if len(lengths) and not 0 < int(lengths.min()) <= int(lengths.max()) <= capacity:
        raise ValueError("every length must lie in 1..capacity")


def worst_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the emptiest open pack.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    check_lengths(histogram, capacity)
    packs = PacksByRoom(int(histogram.lengths[-1]) if len(histogram.lengths) else 1)
    out: list[Row] = []
    total = 0
    for length, count in zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True):
        left = count
        while left and packs.emptiest() >= length:
            left -= deal_round(packs, out, packs.take_emptiest(), length, left)
        if left:  # no room >= length is left, so a new pack stays the emptiest until it is full
            needed = -(-left // (capacity // length))
            fill(packs, out, (capacity, (total, needed, 0)), length, left)
            total += needed
    return to_runs(out, total)
