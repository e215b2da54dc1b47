"""The epoch's order: a permutation, block by block, that looks random and never changes."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packidx.index.order import EpochOrder, order_key, permute

SIZES = [*range(1, 70), 127, 128, 129, 1000, 1023, 1024, 4097, 50_000]


def keys(count: int) -> np.ndarray:
    return np.array([order_key("snapshot", seed, 0) for seed in range(count)], np.uint64)


@pytest.mark.parametrize("block", [1, 2, 7, 64, 10**9])
def test_every_order_is_a_permutation(block: int) -> None:
    for size in SIZES:
        packs = EpochOrder(size, block, order_key("snapshot", size, 3)).packs(np.arange(size))
        assert np.array_equal(np.sort(packs), np.arange(size)), (size, block)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(0, 2**64 - 1), st.data())
def test_any_part_can_be_had_alone(size: int, block: int, key: int, data: st.DataObject) -> None:
    order = EpochOrder(size, block, key)
    whole = order.packs(np.arange(size))
    assert np.array_equal(np.sort(whole), np.arange(size))
    some = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    assert np.array_equal(order.packs(some), whole[some])


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 100), st.integers(0, 2**64 - 1))
def test_packs_stay_in_their_block(size: int, block: int, key: int) -> None:
    """Runs of the order are whole blocks of the file; the partial one stands where the key says."""
    order = EpochOrder(size, block, key)
    numbers = order.packs(np.arange(size)) // order.block
    runs = [(number, len(list(run))) for number, run in itertools.groupby(numbers.tolist())]
    full, tail = divmod(size, order.block)
    assert Counter(dict(runs)) == Counter(
        dict.fromkeys(range(full), order.block) | ({full: tail} if tail else {})
    )
    assert len(runs) == full + bool(tail)


def test_the_order_never_changes() -> None:
    """Persisted states point into this order: other numbers here would break every resume."""
    order = EpochOrder(1000, 64, order_key("0123456789abcdef", 7, 2))
    packs = order.packs(np.arange(1000))
    assert packs.dtype == np.int64
    assert packs[:8].tolist() == GOLDEN
    assert hashlib.sha256(packs.astype("<i8").tobytes()).hexdigest()[:16] == GOLDEN_DIGEST


GOLDEN = [82, 119, 123, 116, 98, 96, 68, 71]
GOLDEN_DIGEST = "ad61eb29e14b01f5"


def test_large_epochs_need_no_memory() -> None:
    order = EpochOrder(10**12, 1000, order_key("x", 0, 0))
    packs = order.packs(np.arange(10**12 - 5000, 10**12))
    assert len(set(packs.tolist())) == 5000 and packs.min() >= 0 and packs.max() < 10**12


@pytest.mark.parametrize("change", [("other", 0, 0), ("snapshot", 1, 0), ("snapshot", 0, 1)])
def test_snapshot_seed_and_epoch_each_give_another_order(change: tuple[str, int, int]) -> None:
    mine = EpochOrder(2000, 1, order_key("snapshot", 0, 0)).packs(np.arange(2000))
    other = EpochOrder(2000, 1, order_key(*change)).packs(np.arange(2000))
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


@pytest.mark.parametrize("size", [16, 33, 100, 128, 1000])
def test_positions_and_neighbours_look_random(size: int) -> None:
    tries = 3000
    chosen = {
        i: permute(np.full(tries, i, np.uint64), size, keys(tries)) for i in (0, 1, size // 2)
    }
    at = {i: packs.astype(int) for i, packs in chosen.items()}
    for where in at.values():
        assert excess(np.bincount(where, minlength=size), tries / size) < 5
    for one, two in ((0, 1), (0, size // 2)):
        steps = np.bincount((at[two] - at[one]) % size, minlength=size)
        assert steps[0] == 0
        assert excess(steps[1:], tries / (size - 1)) < 5


def test_one_order_looks_random() -> None:
    """Within one permutation: no correlation with the file's order, nor of neighbours."""
    size = 20_000
    packs = EpochOrder(size, 1, order_key("snapshot", 0, 0)).packs(np.arange(size)).astype(float)
    bound = 5 / math.sqrt(size)
    assert abs(np.corrcoef(packs, np.arange(size))[0, 1]) < bound
    for lag in (1, 2, 3, 64, 128, 1024):
        assert abs(np.corrcoef(packs[lag:], packs[:-lag])[0, 1]) < bound
    # adjacent in the file and adjacent in the epoch: 2 pairs expected
    assert (np.abs(np.diff(packs)) == 1).sum() < 12


def test_blocks_and_the_partial_block_move() -> None:
    firsts, tails, insides = set(), set(), set()
    for epoch in range(40):
        packs = EpochOrder(35, 8, order_key("snapshot", 0, epoch)).packs(np.arange(35))
        firsts.add(packs[0] // 8)
        tails.add(int(np.flatnonzero(packs == 32)[0]) // 8)
        insides.add(tuple(packs[packs // 8 == 1] % 8))
    assert firsts == {0, 1, 2, 3, 4} and tails == {0, 1, 2, 3, 4} and len(insides) > 35
    # two blocks of one epoch are permuted differently
    packs = EpochOrder(32, 16, order_key("snapshot", 0, 0)).packs(np.arange(32))
    assert not np.array_equal(packs[:16] % 16, packs[16:] % 16)
