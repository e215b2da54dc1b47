"""Rules of streams: other packers' packs, what no rule may break, and the places of lanes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.errors import OptionError
from packidx.format.stream import StreamRule
from packidx.pack.streams import Deal, Lane, Places, default_lanes, pack_all

RULES = ["next-fit", "best-fit:3", "balanced:3", "internvl:4", "window:8"]

Record = tuple[int, int]
"""Tokens and images."""


def given_out(rule: str, records: list[Record], limits: Record) -> list[list[int]]:
    """The packs of one lane to which the records come in a keyed order; and that order."""
    deal = Deal(np.ones(len(records), np.int64), 1, seed=0)
    lane = Lane(StreamRule.parse(rule), limits, deal, 0, lambda row, copy: (records[row], 0))
    return [[row for row, _ in pack] for pack in iter(lane.next_pack, None)]


def in_order(records: list[Record]) -> list[int]:
    deal = Deal(np.ones(len(records), np.int64), 1, seed=0)
    return deal.come(0, np.arange(deal.num_turns)).row.tolist()


def internvl_reference(records: list[Record], limits: Record, most: int) -> list[list[int]]:
    """`PackedDataset.__iter__` of InternVL, without overflow, over (tokens, images): its buffers
    are kept by images, most first."""
    buffers: list[list[int]] = []
    packs = []

    def held(buffer: list[int], of: int) -> int:
        return sum(records[row][of] for row in buffer)

    for row in in_order(records):
        at = next(
            (
                n
                for n, buffer in enumerate(buffers)
                if held(buffer, 1) + records[row][1] <= limits[1]
                and held(buffer, 0) + records[row][0] <= limits[0]
            ),
            None,
        )
        buffer = [*buffers.pop(at), row] if at is not None else [row]
        if held(buffer, 0) >= limits[0]:
            packs.append(buffer)
            continue
        images = held(buffer, 1)
        find = next((n for n, b in enumerate(buffers) if held(b, 1) < images), len(buffers))
        buffers.insert(find, buffer)
        while buffers and held(buffers[0], 1) == limits[1]:
            packs.append(buffers.pop(0))
        while len(buffers) > most:
            packs.append(buffers.pop(0))
    return packs


def lmms_reference(records: list[Record], capacity: int) -> list[list[int]]:
    """`MultiModalIterableDataset.__iter__` of LMMS Engine: a buffer that is given out when the next
    record does not fit."""
    packs, buffer, tokens = [], [], 0
    for row in in_order(records):
        length = records[row][0]
        if tokens > 0 and tokens + length > capacity:
            packs.append(buffer)
            buffer, tokens = [], 0
        buffer.append(row)
        tokens += length
    return packs


def drawn(number: int, limits: Record, seed: int = 0) -> list[Record]:
    draw = np.random.default_rng(seed)
    tokens = np.clip(draw.lognormal(5.5, 1.0, number), 1, limits[0]).astype(int).tolist()
    return list(zip(tokens, draw.integers(0, 4, number).tolist(), strict=True))


def test_internvls_packs_on_ten_thousand_records() -> None:
    limits = (4096, 24)
    records = drawn(10_000, limits)
    theirs = internvl_reference(records, limits, most=20)
    ours = given_out("internvl:20", records, limits)
    assert len(theirs) > 500
    assert ours[: len(theirs)] == theirs  # what is open at the end is packed anew


def test_lmms_engines_packs_on_ten_thousand_records() -> None:
    records = drawn(10_000, (4096, 24))
    theirs = lmms_reference(records, 4096)
    ours = given_out("next-fit", [(tokens, 0) for tokens, _ in records], (4096, 1))
    assert len(theirs) > 500
    assert ours[: len(theirs)] == theirs


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=60),
    st.sampled_from(RULES),
)
def test_every_record_once_and_no_pack_too_full(records: list[Record], rule: str) -> None:
    limits = (40, 9)
    packs = given_out(rule, records, limits)
    assert sorted(row for pack in packs for row in pack) == list(range(len(records)))
    for pack in packs:
        assert all(sum(records[row][k] for row in pack) <= limits[k] for k in (0, 1))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=80),
    st.sampled_from(RULES),
    st.integers(0, 30),
)
def test_a_lane_goes_on_from_any_state(tokens: list[int], rule: str, stop: int) -> None:
    records = [(length, length % 3) for length in tokens]

    def lane() -> Lane:
        deal = Deal(np.ones(len(records), np.int64), 1, seed=5)
        return Lane(StreamRule.parse(rule), (40, 9), deal, 0, lambda row, _: (records[row], row))

    whole = lane()
    packs = list(iter(whole.next_pack, None))
    begun = lane()
    first = [begun.next_pack() for _ in range(min(stop, len(packs)))]
    going_on = lane()
    going_on.load(begun.state())
    assert first + list(iter(going_on.next_pack, None)) == packs


def test_best_fit_and_windows_fill_their_packs() -> None:
    fill = {}
    for rule in ("next-fit", "best-fit:16", "balanced:16", "window:256"):
        records = [(tokens, 0) for tokens, _ in drawn(20_000, (8192, 0), seed=1)]
        packs = given_out(rule, records, (8192, 1))[:-16]
        tokens = sum(records[row][0] for pack in packs for row in pack)
        fill[rule] = tokens / len(packs) / 8192
    assert fill["best-fit:16"] > 0.965
    assert fill["window:256"] > 0.992
    assert fill["balanced:16"] > 0.965
    assert fill["next-fit"] < 0.96


def test_no_record_waits_for_ever_in_a_window() -> None:
    # Records of over half a pack fit with nothing, and the fullest pack is never theirs.
    records = [(51, 0)] + [(50, 0)] * 400
    deal = Deal(np.ones(len(records), np.int64), 1, seed=0)
    place = in_order(records).index(0)
    packs = given_out("window:10", records, (100, 1))
    at = next(n for n, pack in enumerate(packs) if 0 in pack)
    assert deal.num_turns == 401
    assert at * 2 <= place + 4 * 10 + 10


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_places_go_lane_by_lane(given_packs: list[int]) -> None:
    places = Places(given_packs)
    lanes, rows = places.order()
    expected = [
        (lane, row)
        for row in range(max(given_packs))
        for lane, number in enumerate(given_packs)
        if row < number
    ]
    assert list(zip(lanes.tolist(), rows.tolist(), strict=True)) == expected
    assert [places.at(k) for k in range(places.num_places)] == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(4, 9), st.integers(0, 99))
def test_copies_come_once_each_to_lanes_of_their_own(
    copies: list[int], lanes: int, seed: int
) -> None:
    deal = Deal(np.array(copies), lanes, seed)
    come = []
    for lane in range(lanes):
        own = deal.come(lane, np.arange(deal.num_turns))
        assert all(a < b for a, b in pairwise(own.turn.tolist()))
        rows = own.row.tolist()
        assert len(rows) == len(set(rows))
        come += list(zip(rows, own.copy.tolist(), strict=True))
    wanted = [(row, copy) for row, number in enumerate(copies) for copy in range(number)]
    assert sorted(come) == wanted


def test_packs_of_all_lanes_stand_by_place() -> None:
    records = drawn(500, (2048, 9))
    deal = Deal(np.ones(500, np.int64), 4, seed=2)
    rule = StreamRule.parse("best-fit:2")
    packed = pack_all(rule, (2048,), deal, 4, lambda row, _: ((records[row][0],), 0))
    lanes = [
        Lane(rule, (2048,), deal, number, lambda row, _: ((records[row][0],), 0))
        for number in range(4)
    ]
    ends = np.cumsum(packed.sizes)
    for place in range(8):  # every lane has two packs
        pack = lanes[place % 4].next_pack()
        begin = int(ends[place] - packed.sizes[place])
        rows = packed.row[begin : ends[place]].tolist()
        assert pack == [(row, 0) for row in rows]


def test_lanes_where_nobody_says_how_many() -> None:
    assert default_lanes(8192 * 10**6, 8192) == 1024
    assert default_lanes(8192 * 400, 8192) == 16
    assert default_lanes(100, 8192) == 1


@pytest.mark.parametrize("text", ["best-fit", "next-fit:3", "none", "window:0", "best-fit:3/0", ""])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="choose one of next-fit"):
        StreamRule.parse(text)


@pytest.mark.parametrize("text", ["stream:next-fit", "stream:best-fit:16/64", "stream:window:9"])
def test_a_rule_is_read_as_it_is_written(text: str) -> None:
    assert str(StreamRule.parse(text)) == text
