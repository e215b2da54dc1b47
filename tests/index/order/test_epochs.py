"""The epoch's order: a permutation, block by block, that looks random and never changes."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.index.order import EpochOrder, Epochs, order_key, permute

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
    epochs = Epochs(((0, 23), (100, 19)), 8, 4)
    planned = epochs.scheduled().tolist()
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


@pytest.mark.parametrize("change", [("other", 0, 0), ("snapshot", 1, 0), ("snapshot", 0, 1)])
def test_snapshot_seed_and_epoch_each_give_another_order(change: tuple[str, int, int]) -> None:
    mine = one_range(2000, 1, order_key("snapshot", 0, 0)).packs(np.arange(2000))
    other = one_range(2000, 1, order_key(*change)).packs(np.arange(2000))
    assert (mine == other).sum() < 12  # 1 expected of two random permutations


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


def test_one_order_looks_random() -> None:
    """Within one permutation: no correlation with the file's order, nor of neighbours."""
    size = 20_000
    packs = one_range(size, 1, order_key("snapshot", 0, 0)).packs(np.arange(size)).astype(float)
    bound = 5 / math.sqrt(size)
    assert abs(np.corrcoef(packs, np.arange(size))[0, 1]) < bound
    for lag in (1, 2, 3, 64, 128, 1024):
        assert abs(np.corrcoef(packs[lag:], packs[:-lag])[0, 1]) < bound
    # adjacent in the file and adjacent in the epoch: 2 pairs expected
    assert (np.abs(np.diff(packs)) == 1).sum() < 12


def test_blocks_chunks_and_the_rest_move() -> None:
    firsts, tails, insides, chunks = set(), set(), set(), set()
    for epoch in range(60):
        packs = one_range(35, 8, order_key("snapshot", 0, epoch), 2).packs(np.arange(35))
        firsts.add(packs[0] // 8)
        tails.add(int(np.flatnonzero(packs == 34)[0]) // 8)
        inside = packs[packs // 8 == 1] % 8
        insides.add(tuple(inside))
        chunks.add(tuple(dict.fromkeys((inside // 2).tolist())))
    assert firsts >= {0, 1, 2, 3} and tails == {0, 1, 2, 3, 4}
    assert len(insides) > 50 and len(chunks) > 15
    # two blocks of one epoch are permuted differently, and so are two chunks of one block
    packs = one_range(64, 32, order_key("snapshot", 0, 0), 16).packs(np.arange(64))
    assert not np.array_equal(packs[:32] % 32, packs[32:] % 32)
    assert not np.array_equal(packs[:16] % 16, packs[16:32] % 16)
