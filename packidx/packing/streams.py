"""Streams: the planner, run on one window of records at a time.

A stream has V lanes. A keyed permutation deals all copies of all records to the lanes in turn. A
lane cuts its own into windows of about N, packs each window as a plan of its own, and gives the
packs out in random order. Place n of the training order is pack n div V of lane n mod V. So a pack
depends on the records, the seed, the strategy, N and V, and on nothing that happens in training;
and a lane's state is two numbers, its window and how many packs of it were given out.

Example: 10 records in 2 lanes with N = 3. The permutation may give lane 0 the records 7 2 9 4 0,
and lane 1 the others. Each lane has round(5 / 3) = 2 windows of at most 3 places: 7 2 9 and 4 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from packidx.arrays import Int64s, Ints
from packidx.errors import MismatchError
from packidx.hashing import derive_key
from packidx.packing.solve import Problem, solve_problem
from packidx.permutation import draw_permutation, permute

WINDOW = 4000
"""Records of a window. On five log-normal mixes windows of 1,000 fill packs of 16k to 98.4–99.5 %,
windows of 4,000 to 99.5–99.8 % (bench/bench_streams.py)."""
MIN_LANES = 64


class Copies(NamedTuple):
    """Copies of records, int64 [n] each.

    Attributes:
        row: number of the record.
        copy: from 0.
    """

    row: Int64s
    copy: Int64s


class LaneOrder:
    """The order in which copies of records come to each lane in one epoch.

    Args:
        copies: int [n], times that each record comes in the epoch; 0 leaves it out.
        rounds: an upper bound of `copies` that does not depend on records that are left out.
        expected: copies that come if no record is left out.
        lanes: number of lanes, V.
        window: copies of a window, N.
        seed, epoch: of the permutation.
    """

    def __init__(
        self,
        copies: Ints,
        rounds: int,
        expected: Fraction,
        lanes: int,
        window: int,
        seed: int,
        epoch: int = 0,
    ) -> None:
        self._copies, self._lanes = copies, lanes
        self._number = len(copies) * rounds
        self._turns = -(-self._number // lanes)  # of a lane; some stand for no copy
        self.num_windows = max(1, round(expected / (lanes * window)))
        self._each = max(1, -(-self._turns // self.num_windows))
        self._key = derive_key(seed, epoch, "stream")

    def window(self, lane: int, number: int) -> Copies:
        """Return the copies of a lane's window, in the order in which they come."""
        stop = min((number + 1) * self._each, self._turns)
        place = np.arange(number * self._each, stop) * self._lanes + lane
        place = place[place < self._number]
        drawn = permute(place.astype(np.uint64), self._number, self._key).astype(np.int64)
        copy, row = np.divmod(drawn, len(self._copies))
        comes = copy < self._copies[row]
        return Copies(row[comes], copy[comes])

    def key(self, lane: int, number: int) -> int:
        """Return the key of a window's composition."""
        return derive_key(self._key, lane, number)


def pack_window(problem: Problem, strategy: str, key: int) -> list[Int64s]:
    """Pack a window, and put its packs in random order.

    Vision costs are not looked at: a stream that counts as it reads does not know them.

    Args:
        problem: of the window's items.
        strategy: as `PlanOptions` names it.
        key: of the composition and the order.

    Returns:
        int64 [items of a pack] for each pack: numbers of its items.
    """
    if not len(problem.lengths):
        return []
    problem = replace(problem, vision_cost=None)
    slots = solve_problem(problem, strategy, key).slots
    by_place = np.lexsort((slots.position, slots.pack))
    item, pack = slots.item[by_place].astype(np.int64), slots.pack[by_place]
    packs = np.split(item, np.flatnonzero(np.diff(pack)) + 1)
    return [
        packs[number] for number in draw_permutation(len(packs), derive_key(key, "packs")).tolist()
    ]


def most_copies(weights: Mapping[str, str]) -> int:
    """Return how many copies a record may have, at least 1.

    Args:
        weights: of sources, as a plan's options have them.
    """
    return max([1, *(math.ceil(Fraction(weight)) for weight in weights.values())])


def expected_copies(sources: Mapping[str, int], weights: Mapping[str, str]) -> Fraction:
    """Return how many copies come if no record is left out, from the records of each source."""
    each = (number * Fraction(weights.get(name, 1)) for name, number in sources.items())
    return sum(each, Fraction(0))


def least_lanes(each: int) -> int:
    """Return the smallest multiple of `each` that is at least `MIN_LANES`."""
    return -(-MIN_LANES // each) * each


def check_lanes(lanes: int, world_size: int, workers: int, micro_batch: int) -> None:
    """Refuse lanes that cannot be dealt to all workers of all ranks alike.

    Raises:
        MismatchError: they are not a multiple; the message says which is.
    """
    each = world_size * max(1, workers) * micro_batch
    if lanes % each:
        nearest = max(1, round(lanes / each)) * each
        raise MismatchError(
            f"{lanes} lanes are not a multiple of {world_size} ranks x {max(1, workers)} workers x"
            f" {micro_batch} packs of a micro-batch: change these, or stream with lanes={nearest}"
        )
