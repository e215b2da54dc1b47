"""The order of training: epochs, and the steps that ranks take."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packidx.index.order import EpochOrder, order_key


@st.composite
def orders(draw: st.DrawFn) -> tuple[EpochOrder, np.ndarray]:
    """An order and the packs of its ranges, sorted."""
    chunk = draw(st.integers(1, 12))
    counts = draw(st.lists(st.integers(0, 600), min_size=1, max_size=5))
    ranges, first = [], 0
    for count in counts:
        first += draw(st.integers(0, 50))
        ranges.append((first, count))
        first += count
    block, key = chunk * draw(st.integers(1, 9)), draw(st.integers(0, 2**64 - 1))
    packs = np.concatenate([np.arange(first, first + count) for first, count in ranges])
    return EpochOrder(draw(st.permutations(ranges)), block, chunk, key), packs


@given(orders(), st.data())
def test_any_part_can_be_had_alone(
    given: tuple[EpochOrder, np.ndarray], data: st.DataObject
) -> None:
    order, packs = given
    size = order.num_packs
    whole = order.packs(np.arange(size))
    assert np.array_equal(np.sort(whole), packs)
    drawn = data.draw(st.lists(st.sampled_from(range(size)), max_size=20)) if size else []
    some = np.array(drawn, int)
    assert np.array_equal(order.packs(some), whole[some])


@given(orders())
def test_blocks_and_chunks_stay_together(given: tuple[EpochOrder, np.ndarray]) -> None:
    """Each block's worth of positions is a block of the plan, but one that takes in the rest."""
    order, packs = given
    parts = zip(order._first, np.diff(order._starts), strict=True)
    planned = [pack for first, count in parts for pack in range(first, first + count)]
    assert sorted(planned) == packs.tolist()
    rank = {pack: place for place, pack in enumerate(planned)}
    whole = order.full * order.block
    found = np.array([rank[pack] for pack in order.packs(np.arange(whole)).tolist()], int)
    blocks = found.reshape(-1, order.block) // order.block
    kept = (blocks == blocks[:, :1]).all(axis=1)
    assert kept.sum() >= order.full - bool(order.tail)
    assert len(set(blocks[kept, 0].tolist())) == kept.sum()
    chunks = found.reshape(-1, order.chunk) // order.chunk
    together = (chunks == chunks[:, :1]).all(axis=1)
    assert len(together) - together.sum() <= bool(order.tail % order.chunk)


def test_ranges_keep_their_own_blocks() -> None:
    """Each window has blocks of its own; what fills none comes last."""
    order = EpochOrder([(0, 23), (100, 19)], 8, 4, order_key("snapshot", 0, 0))
    planned = order.scheduled().tolist()
    whole = [*range(16), *range(100, 116)]
    assert planned == [*whole, *range(16, 20), *range(20, 23), *range(116, 119)]
    packs = order.packs(np.arange(42)).reshape(-1, 2)[:20].reshape(5, 8)
    pure = [
        row
        for row in np.sort(packs, axis=1).tolist()
        if row[0] in (0, 8, 100, 108) and row == list(range(row[0], row[0] + 8))
    ]
    assert len(pure) >= 3


def test_the_order_never_changes() -> None:
    """Persisted states point into this order: other numbers here would break every resume."""
    order = EpochOrder([(0, 700), (900, 300)], 64, 8, order_key("0123456789abcdef", 7, 2))
    packs = order.packs(np.arange(1000))
    assert packs.dtype == np.int64
    assert packs[:8].tolist() == GOLDEN
    assert hashlib.sha256(packs.astype("<i8").tobytes()).hexdigest()[:16] == GOLDEN_DIGEST


GOLDEN = [1061, 1067, 1066, 1065, 1062, 1060, 1063, 1064]
GOLDEN_DIGEST = "5df6038a5ba62b52"


@given(
    orders().filter(lambda drawn: drawn[0].num_packs), st.lists(st.integers(0, 140), max_size=30)
)
def test_packs_lead_back_to_their_positions(
    given: tuple[EpochOrder, np.ndarray], others: list[int]
) -> None:
    """In any order, twice, and with packs among them that are another epoch's."""
    order, _ = given
    everything = np.arange(order.num_packs)
    packs = order.packs(everything)
    assert order.positions(packs).tolist() == everything.tolist()
    known = dict(zip(packs.tolist(), everything.tolist(), strict=True))
    positions = order.positions(np.array(others, np.int64))
    assert positions.dtype == np.int64
    assert positions.tolist() == [known.get(pack, -1) for pack in others]
