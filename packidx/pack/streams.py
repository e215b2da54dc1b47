"""Pack while records arrive: rules over a few open packs, and lanes that make them reproducible.

A stream has V lanes. Records are dealt to lanes by keyed permutations, each lane packs its own by
one rule, and the packs are given out lane by lane: place n is pack n div V of lane n mod V, as long
as every lane has one, then lanes that have ended are passed over. So a pack depends on the records,
the seed, the rule and V, and on nothing that happens while training.

A rule takes one record at a time and gives out at most one pack for it. What is open when a lane
has no more records is packed anew, by best fit decreasing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from packidx.arrays import Int64s, Ints
from packidx.errors import MismatchError, OptionError
from packidx.format.stream import StreamRule
from packidx.hashing import derive_key
from packidx.pack.strategies.in_order import window_fit
from packidx.permutation import permute

MAX_LANES = 1024
"""Lanes where nobody says how many; fewer where a lane would give out fewer than `_PACKS` packs."""
_PACKS = 20
_STALE = 4  # a record is given out by `window:N` once as many times N have come after it

Sizes = tuple[int, ...]
"""What a record takes of every limit: tokens first."""


class Arrival(NamedTuple):
    """A record that has come.

    Attributes:
        row, copy: which record it is, and which of its copies.
        sizes: of each limit.
        cost: in the vision tower; what `balanced` looks at.
        turn: its place in the lane.
    """

    row: int
    copy: int
    sizes: Sizes
    cost: int
    turn: int


class OpenPack:
    """A pack that may get more records.

    Attributes:
        records: in the order in which they came.
        sums: of their sizes.
        cost: the sum of their costs.
    """

    __slots__ = ("cost", "records", "sums")

    def __init__(self, records: Sequence[Arrival] = ()) -> None:
        self.records: list[Arrival] = []
        self.sums: Sizes = ()
        self.cost = 0
        for record in records:
            self.add(record)

    def add(self, record: Arrival) -> None:
        """Take a record, whether or not it fits."""
        sums = self.sums or (0,) * len(record.sizes)
        self.records.append(record)
        self.sums = tuple([a + b for a, b in zip(sums, record.sizes, strict=True)])
        self.cost += record.cost

    def fits(self, sizes: Sizes, limits: Sizes) -> bool:
        """Return whether a record of `sizes` has room."""
        for held, size, limit in zip(self.sums, sizes, limits, strict=True):
            if held + size > limit:
                return False
        return True


Rule = Callable[[list[OpenPack], Arrival, Sizes, int], OpenPack | None]
"""(open packs, which it changes; a record that fits alone; limits; K) → the pack it gives out."""


def next_fit(packs: list[OpenPack], record: Arrival, limits: Sizes, most: int) -> OpenPack | None:
    """One pack is open: a record that does not fit closes it (LMMS Engine)."""
    if packs and packs[0].fits(record.sizes, limits):
        packs[0].add(record)
        return None
    closed = packs.pop() if packs else None
    packs.append(OpenPack([record]))
    return closed


def best_fit(packs: list[OpenPack], record: Arrival, limits: Sizes, most: int) -> OpenPack | None:
    """The fullest of K packs in which it fits; where none has room, the fullest is given out."""
    fitting = [pack for pack in packs if pack.fits(record.sizes, limits)]
    if fitting:
        return _add(packs, max(fitting, key=_tokens), record, limits)
    return _open_another(packs, record, limits, most)


def balanced(packs: list[OpenPack], record: Arrival, limits: Sizes, most: int) -> OpenPack | None:
    """Of K packs, the one that is then nearest to the mean vision cost of a token."""
    fitting = [pack for pack in packs if pack.fits(record.sizes, limits)]
    if not fitting:
        return _open_another(packs, record, limits, most)
    cost = record.cost + sum(pack.cost for pack in packs)
    tokens = record.sizes[0] + sum(pack.sums[0] for pack in packs)

    def distance(pack: OpenPack) -> tuple[int, int]:
        own = (pack.cost + record.cost) * tokens - (pack.sums[0] + record.sizes[0]) * cost
        return abs(own), -pack.sums[0]

    return _add(packs, min(fitting, key=distance), record, limits)


def internvl(packs: list[OpenPack], record: Arrival, limits: Sizes, most: int) -> OpenPack | None:
    """InternVL's: packs stand by their images, most first, and the first with room takes it.

    One with as many images or tokens as it may have is given out, and of more than K the first.
    `limits` and sizes are tokens, then images. Their `allow_overflow`, which cuts, is left out.
    """
    pack = next((pack for pack in packs if pack.fits(record.sizes, limits)), None)
    if pack is None:
        pack = OpenPack()
    else:
        packs.remove(pack)
    pack.add(record)
    if pack.sums[0] == limits[0] or pack.sums[1] == limits[1]:
        return pack
    packs.insert(bisect_right(packs, -pack.sums[1], key=lambda each: -each.sums[1]), pack)
    return packs.pop(0) if len(packs) > most else None


def window(packs: list[OpenPack], record: Arrival, limits: Sizes, most: int) -> OpenPack | None:
    """The last N records, packed by best fit decreasing whenever there are more: out goes the
    fullest pack; once 4 N have come after the oldest record, a pack filled up around that.

    All of them stand in one open pack, which holds what waits.
    """
    if not packs:
        packs.append(OpenPack())
    waiting = packs[0].records
    waiting.append(record)
    if len(waiting) <= most:
        return None
    if waiting[0].turn + _STALE * most <= record.turn:
        given = _around(waiting, limits)
    else:
        given = max(repacked(waiting, limits), key=_tokens)
    gone = {each.turn for each in given.records}
    waiting[:] = [each for each in waiting if each.turn not in gone]
    return given


def _tokens(pack: OpenPack) -> int:
    return pack.sums[0]


def _turn(record: Arrival) -> int:
    return record.turn


def _around(records: Sequence[Arrival], limits: Sizes) -> OpenPack:
    """A pack of the first record and, longest first, of the others that find room beside it."""
    pack = OpenPack(records[:1])
    for record in sorted(records[1:], key=lambda each: -each.sizes[0]):
        if pack.fits(record.sizes, limits):
            pack.add(record)
    return OpenPack(sorted(pack.records, key=_turn))


def _add(packs: list[OpenPack], pack: OpenPack, record: Arrival, limits: Sizes) -> OpenPack | None:
    """Add a record, and give the pack out if it is full."""
    pack.add(record)
    if pack.sums[0] < limits[0]:
        return None
    packs.remove(pack)
    return pack


def _open_another(
    packs: list[OpenPack], record: Arrival, limits: Sizes, most: int
) -> OpenPack | None:
    """Open a pack for a record that fits nowhere; of more than `most` the fullest is given out."""
    packs.append(OpenPack([record]))
    if len(packs) <= most and record.sizes[0] < limits[0]:
        return None
    fullest = max(packs, key=_tokens)
    packs.remove(fullest)
    return fullest


def repacked(records: Sequence[Arrival], limits: Sizes) -> list[OpenPack]:
    """`records`, packed by best fit decreasing; in each pack in the order in which they came."""
    if not records:
        return []
    sizes = np.array([record.sizes for record in records], np.int64)
    pack = window_fit(sizes, np.array(limits, np.int64), len(records)).tolist()
    packs = [OpenPack() for _ in range(max(pack) + 1)]
    for record, number in zip(records, pack, strict=True):
        packs[number].add(record)
    return packs


_RULES: dict[str, Rule] = {
    "next-fit": next_fit,
    "best-fit": best_fit,
    "balanced": balanced,
    "internvl": internvl,
    "window": window,
}


def default_lanes(num_tokens: int, capacity: int) -> int:
    """Lanes of a stream of `num_tokens` in all: a power of two, at most `MAX_LANES`."""
    packs = num_tokens // capacity
    return min(MAX_LANES, 1 << max(0, (packs // _PACKS).bit_length() - 1))


def most_copies(weights: Mapping[str, str]) -> int:
    """Copies that a record may have by the weights of a plan's options, at least 1."""
    return max([1, *(math.ceil(Fraction(weight)) for weight in weights.values())])


class Come(NamedTuple):
    """What comes to a lane, int64 [n] each.

    Attributes:
        turn: place in the lane, ascending.
        row: record.
        copy: which of its copies, from 0.
    """

    turn: Int64s
    row: Int64s
    copy: Int64s


class Deal:
    """Which copies of which records come to which lane, in which order.

    The records, and as many blanks as make their number a multiple of V, are permuted by a key; of
    copy c of the record at place p the lane is p + c modulo V, so no two copies of a record meet,
    and another permutation says when it comes there.

    Args:
        copies: int [n], how often each record comes in an epoch; 0 leaves it out.
        most: copies that a record may have by the weight of its source, whether or not one has so
            many: the order must not depend on records that turn out to be left out.
        lanes: V; more than any record has copies.
        seed, epoch: of the permutations.

    Raises:
        OptionError: a record has as many copies as there are lanes.
    """

    def __init__(
        self, copies: Ints, lanes: int, seed: int, epoch: int = 0, most: int | None = None
    ) -> None:
        self._copies, self._lanes = copies, lanes
        self._rounds = int(copies.max(initial=1)) if most is None else most
        if self._rounds > 1 and self._rounds >= lanes:
            raise OptionError(
                f"a sample comes {self._rounds} times in {lanes} lanes, and its copies may not meet"
                f" in one: stream with more lanes, or lower the weight of its source"
            )
        self._each = -(-len(copies) // lanes)  # of a round, in one lane
        self._key = derive_key(seed, epoch, "stream")
        self._turn_key = derive_key(seed, epoch, "turn")

    @property
    def num_come(self) -> int:
        """Copies of records that come in an epoch."""
        return int(self._copies.sum())

    @property
    def num_turns(self) -> int:
        """Places of a lane, blanks among them."""
        return self._each * self._rounds

    def come(self, lane: int, turn: Int64s) -> Come:
        """Return what comes to `lane` at some of its places, int64 [n], without blanks."""
        place = permute(turn.astype(np.uint64), self.num_turns, self._turn_key).astype(np.int64)
        copy, place = np.divmod(place, self._each)
        number = self._each * self._lanes
        place = (place * self._lanes + lane - copy) % number
        row = permute(place.astype(np.uint64), number, self._key).astype(np.int64)
        is_there = row < len(self._copies)
        is_there[is_there] = copy[is_there] < self._copies[row[is_there]]
        return Come(turn[is_there], row[is_there], copy[is_there])


_AHEAD = 512  # places of a lane looked up at a time

Measure = Callable[[int, int], tuple[Sizes, int] | None]
"""(row, copy) → its sizes and its cost in the vision tower; None leaves it out."""


class Lane:
    """One lane of a stream: what has come to it, and the packs that it has open.

    A pack's records are (row, copy), in the order in which they came.

    Args:
        rule: of all lanes.
        limits: of a pack: tokens first; with the rule ``internvl`` images second.
        number: of this lane.

    Attributes:
        given: packs that were given out.
    """

    def __init__(
        self, rule: StreamRule, limits: Sizes, deal: Deal, number: int, measure: Measure
    ) -> None:
        self._rule, self._most = _RULES[rule.name], rule.number or 1
        self._limits, self._deal, self._number = limits, deal, number
        self._measure = measure
        self._open: list[OpenPack] = []
        self._taken = 0
        self._is_flushed = False
        self.given = 0
        self._packs = self._give_out()

    def next_pack(self) -> list[tuple[int, int]] | None:
        """The next pack; None once there is none."""
        pack = next(self._packs, None)
        if pack is None:
            return None
        self.given += 1
        return [(record.row, record.copy) for record in pack.records]

    def _give_out(self) -> Iterator[OpenPack]:
        while self._taken < self._deal.num_turns:
            stop = min(self._taken + _AHEAD, self._deal.num_turns)
            come = self._deal.come(self._number, np.arange(self._taken, stop))
            for turn, row, copy in zip(*map(np.ndarray.tolist, come), strict=True):
                self._taken = turn + 1
                measured = self._measure(row, copy)
                if measured is None:
                    continue
                record = Arrival(row, copy, *measured, turn)
                pack = self._rule(self._open, record, self._limits, self._most)
                if pack is not None:
                    yield pack
            self._taken = stop
        if not self._is_flushed:
            records = sorted((r for pack in self._open for r in pack.records), key=_turn)
            self._open = sorted(repacked(records, self._limits), key=_tokens, reverse=True)
            self._is_flushed = True
        while self._open:
            yield self._open.pop(0)

    def state(self) -> list[Any]:
        """What has come, packs that were given out, whether what is left is packed anew, and of
        each open pack its records, by their places in the lane: plain JSON."""
        held = [[record.turn for record in pack.records] for pack in self._open]
        return [self._taken, self.given, self._is_flushed, held]

    def load(self, state: Sequence[Any]) -> None:
        """Go on from a `state`."""
        self._taken, self.given, self._is_flushed, held = state
        self._open = []
        for turns in held:
            pack = OpenPack()
            come = self._deal.come(self._number, np.array(turns, np.int64))
            for turn, row, copy in zip(*map(np.ndarray.tolist, come), strict=True):
                measured = self._measure(row, copy)
                if measured is not None:
                    pack.add(Arrival(row, copy, *measured, turn))
            self._open.append(pack)


class Places:
    """Which pack of which lane is at which place, where every lane's packs are counted.

    Args:
        given: int64 [V], packs of each lane.
    """

    def __init__(self, given: Sequence[int] | Int64s) -> None:
        self._given = np.asarray(given, np.int64)
        self._ends = np.sort(self._given)
        before = np.cumsum(self._ends)
        # Places before row j: of lanes that end before, all packs; of the others, j each.
        self._before = np.concatenate([[0], before])
        self.num_places = int(before[-1]) if len(before) else 0

    def first(self, row: int) -> int:
        """Places before those of the lanes' pack number `row`."""
        ended = int(np.searchsorted(self._ends, row, side="right"))
        return int(self._before[ended]) + (len(self._ends) - ended) * row

    def at(self, place: int) -> tuple[int, int]:
        """The lane and its pack number at a place."""
        low, high = 0, int(self._ends[-1])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.first(middle) <= place else (low, middle)
        alive = np.flatnonzero(self._given > low)
        return int(alive[place - self.first(low)]), low

    def order(self) -> tuple[Int64s, Int64s]:
        """Lane and pack number of every place, int64 [num_places] each."""
        lane = np.repeat(np.arange(len(self._given)), self._given)
        row = np.arange(self.num_places) - np.repeat(
            np.cumsum(self._given) - self._given, self._given
        )
        order = np.lexsort((lane, row))
        return lane[order], row[order]


class Packed(NamedTuple):
    """All packs of an epoch.

    Attributes:
        given: int64 [V], packs of each lane.
        sizes: int64 [packs], records of each pack, by place.
        row, copy: int64 [n], the records, pack after pack.
    """

    given: Int64s
    sizes: Int64s
    row: Int64s
    copy: Int64s


def pack_all(rule: StreamRule, limits: Sizes, deal: Deal, lanes: int, measure: Measure) -> Packed:
    """Run every lane to its end."""
    packs: list[list[list[tuple[int, int]]]] = []
    for number in range(lanes):
        lane = Lane(rule, limits, deal, number, measure)
        packs.append(list(iter(lane.next_pack, None)))
    given = np.array([len(own) for own in packs], np.int64)
    lane_of, row_of = Places(given).order()
    by_place = [packs[n][k] for n, k in zip(lane_of.tolist(), row_of.tolist(), strict=True)]
    sizes = np.array([len(pack) for pack in by_place], np.int64)
    records = np.array([record for pack in by_place for record in pack], np.int64).reshape(-1, 2)
    return Packed(given, sizes, records[:, 0], records[:, 1])


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
