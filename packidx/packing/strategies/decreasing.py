"""Best and worst fit decreasing on counts: the item-level rules' packs, at a histogram's cost."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from packidx.packing.counts import Histogram, PackRuns

Run = tuple[int, int, int]
"""Packs with equal content: the first one's number, how many, and the samples in each."""


@dataclass(slots=True)
class OpenPacks:
    """Runs of packs by room, and how samples were dealt to them.

    Attributes:
        capacity: tokens a pack may hold.
        shortest: of the samples: less room than that is none.
        total: packs opened so far.
        dealt: first pack, number of packs, samples each, and the position of the first of these.
    """

    capacity: int
    shortest: int
    total: int = 0
    dealt: list[tuple[int, int, int, int]] = field(default_factory=list)
    _rooms: list[int] = field(default_factory=list)
    _runs: dict[int, list[Run]] = field(default_factory=dict)

    @classmethod
    def for_lengths(cls, histogram: Histogram, capacity: int) -> OpenPacks:
        """No pack yet."""
        lengths = histogram.lengths
        return cls(capacity, int(lengths[-1]) if len(lengths) else 1)

    def add(self, room: int, run: Run) -> None:
        """Keep a run of packs of that room open."""
        if room < self.shortest or run[1] == 0:  # nothing that is left to deal fits
            return
        if room in self._runs:
            self._runs[room].append(run)
        else:
            insort(self._rooms, room)
            self._runs[room] = [run]

    def take(self, room: int) -> Run:
        """Remove and return a run of packs of just that room, of which there are some."""
        runs = self._runs[room]
        run = runs.pop()
        if not runs:
            del self._runs[room], self._rooms[bisect_left(self._rooms, room)]
        return run

    def fill_best(self, length: int, left: int, limit: int | None = None) -> bool:
        """Deal `left` samples of `length` to the fullest packs that they fit, else to new ones;
        returns whether that took no more than `limit` packs: if not, some are not dealt."""
        while left:
            at = bisect_left(self._rooms, length)
            if at < len(self._rooms):
                room = self._rooms[at]
                left -= self._fill_run(room, self.take(room), length, left)
            else:
                left -= self.fill_new(length, left)
                if limit is not None and self.total > limit:
                    return False
        return True

    def fill_new(self, length: int, left: int) -> int:
        """Deal `left` samples to just as many new packs as they need; returns how many were."""
        needed = -(-left // (self.capacity // length))
        self.total += needed
        return self._fill_run(self.capacity, (self.total - needed, needed, 0), length, left)

    def fill_exactly(self, length: int, left: int) -> int:
        """Deal up to `left` samples to packs of just that room; returns how many are left."""
        while left and length in self._runs:
            left -= self._fill_run(length, self.take(length), length, left)
        return left

    def deal_emptiest(self, length: int, left: int, enough: int) -> int:
        """Deal up to `left` samples, one each, to the emptiest packs, while these have more room
        than `enough`; returns how many are left."""
        rooms, runs, dealt = self._rooms, self._runs, self.dealt  # most of the time goes here
        while left and rooms and rooms[-1] > enough:
            room = rooms[-1]
            same = runs[room]
            first, packs, position = same.pop()
            taken = packs if packs < left else left
            left -= taken
            dealt.append((first, taken, 1, position))
            if taken < packs:
                same.append((first + taken, packs - taken, position))
            elif not same:
                del runs[room], rooms[-1]
            room -= length
            if room in runs:
                runs[room].append((first, taken, position + 1))
            elif room >= self.shortest:
                insort(rooms, room)
                runs[room] = [(first, taken, position + 1)]
        return left

    def plan(self, total: int | None = None) -> PackRuns:
        """All that was dealt, as a plan of `total` packs: of all that were opened by default."""
        first, number, each, position = np.array(self.dealt, np.int64).reshape(-1, 4).T
        return PackRuns(first, number, each, position, self.total if total is None else total)

    def _fill_run(self, room: int, run: Run, length: int, left: int) -> int:
        """Deal up to `left` samples to one run, pack after pack; returns how many."""
        first, packs, position = run
        per_pack = room // length
        full = min(packs, left // per_pack)
        dealt = full * per_pack
        if full:
            self.dealt.append((first, full, per_pack, position))
            self.add(room - per_pack * length, (first, full, position + per_pack))
        rest = left - dealt
        if full < packs and rest:  # fewer than one pack's worth is left: one pack gets it
            self.dealt.append((first + full, 1, rest, position))
            self.add(room - rest * length, (first + full, 1, position + rest))
            dealt, full = left, full + 1
        self.add(room, (first + full, packs - full, position))
        return dealt


def best_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the fullest that it fits.

    Equal samples behave alike: the first goes to a pack of the smallest sufficient room r, which
    then is the fullest that still fits the next, until the pack is full; so ``r // length`` of them
    fill one pack before the next pack of room r is touched.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    for length, count in histogram.pairs():
        packs.fill_best(length, count)
    return packs.plan()


def worst_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the emptiest open pack.

    So does ``greedy_knapsack`` of NeMo Automodel (components/datasets/llm/neat_packing.py, 2025),
    and opens a new pack where even that lacks the room. So the emptiest pack of a new length's turn
    is rarely emptier than that length, and packs end up filled with equals.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    for length, count in histogram.pairs():
        left = packs.deal_emptiest(length, count, length - 1)
        if left:  # no room >= length is left, so a new pack stays the emptiest until it is full
            packs.fill_new(length, left)
    return packs.plan()
