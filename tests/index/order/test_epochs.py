"""The order of training: epochs, and the steps that ranks take."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.index.order import Dealing, EpochOrder, order_key, permute

SIZES = [*range(1, 70), 127, 128, 129, 1000, 1023, 1024, 4097, 50_000]


def keys(count: int) -> np.ndarray:
    return np.array([order_key("snapshot", seed, 0) for seed in range(count)], np.uint64)


def one_range(size: int, block: int, key: int, chunk: int = 1) -> EpochOrder:
    return EpochOrder([(0, size)], block, chunk, key)


@pytest.mark.parametrize(
    ("block", "chunk"), [(1, 1), (2, 1), (6, 3), (64, 8), (64, 64), (10**9, 1)]
)
def test_every_order_is_a_permutation(block: int, chunk: int) -> None:
    for size in SIZES:
        order = one_range(size, block, order_key("snapshot", size, 3), chunk)
        assert np.array_equal(np.sort(order.packs(np.arange(size))), np.arange(size)), (size, block)


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


def excess(counts: np.ndarray, expected: float) -> float:
    """Chi-square of `counts` in standard deviations above its mean."""
    freedom = len(counts) - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    return float((chi - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_small_sizes_reach_every_permutation_alike(size: int) -> None:
    tries = 6000
    columns = [permute(np.full(tries, i, np.uint64), size, keys(tries)) for i in range(size)]
    found = Counter(zip(*(column.tolist() for column in columns), strict=True))
    counts = np.array([found[p] for p in itertools.permutations(range(size))])
    assert counts.sum() == tries
    assert excess(counts, tries / len(counts)) < 5


@st.composite
def dealings(draw: st.DrawFn) -> tuple[Dealing, int]:
    """(dealing, world_size); packs in up to two ranges with a gap between them."""
    world_size = draw(st.integers(1, 5))
    size = world_size * draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=2))
    ranges = [(5 + 9 * at + sum(counts[:at]), count) for at, count in enumerate(counts)]
    ranges = draw(st.permutations(ranges))
    chunk = draw(st.integers(1, 4))
    order = EpochOrder(ranges, chunk * draw(st.integers(1, 6)), chunk, draw(st.integers(0, 9)))
    return Dealing(order, size), world_size


@given(dealings())
def test_turns_are_what_ranks_and_steps_get(drawn: tuple[Dealing, int]) -> None:
    dealing, world_size = drawn
    everything = dealing.packs(0, dealing.order.num_packs).tolist()
    turns = dealing.turns(np.arange(len(everything)), world_size)
    of_pack = dict(zip(everything, np.stack(turns, 1).tolist(), strict=True))
    for rank in range(world_size):
        mine = dealing.order.packs(np.arange(rank, dealing.end, world_size)).tolist()
        per_step = dealing.global_batch // world_size
        for number, pack in enumerate(mine):
            assert of_pack[pack] == [*divmod(number, per_step)]
    for step in range(dealing.num_steps):
        for pack in dealing.packs_of_step(step).tolist():
            assert of_pack[pack][0] == step
    dealt = [pack for step in range(dealing.num_steps) for pack in dealing.packs_of_step(step)]
    assert [*dealt, *dealing.left_out().tolist()] == everything
    assert len(dealing.left_out()) < dealing.global_batch


@given(dealings(), st.lists(st.integers(0, 140), max_size=30))
def test_packs_lead_back_to_their_positions(drawn: tuple[Dealing, int], others: list[int]) -> None:
    """In any order, twice, and with packs among them that are another epoch's."""
    order = drawn[0].order
    everything = np.arange(order.num_packs)
    packs = order.packs(everything)
    assert order.positions(packs).tolist() == everything.tolist()
    known = dict(zip(packs.tolist(), everything.tolist(), strict=True))
    positions = order.positions(np.array(others, np.int64))
    assert positions.dtype == np.int64
    assert positions.tolist() == [known.get(pack, -1) for pack in others]
