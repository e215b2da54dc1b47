"""Dealing items out: by length, seeded, from everywhere, however many blocks it takes."""

from __future__ import annotations

import numpy as np
import pytest

from packidx.pack import slots

BLOCK = 1000


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_SORTED", BLOCK)


@pytest.mark.parametrize("longest", [1, 40, 65_535, 65_536, 1_000_000])
@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 7 * BLOCK, 8 * BLOCK - 1, 8 * BLOCK + 1])
def test_every_item_once_longest_first(count: int, longest: int) -> None:
    lengths = np.random.default_rng(count).integers(1, longest + 1, count).astype(np.int32)
    order = slots.deal_order(lengths, 5)
    assert order.dtype == np.int32
    assert np.array_equal(np.sort(order), np.arange(count))
    assert (np.diff(lengths[order]) <= 0).all()


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_neighbours_are_dealt_far_apart(blocks: int) -> None:
    """Items of one length come in an order that says nothing of their numbers."""
    count = blocks * BLOCK
    orders = [slots.deal_order(np.full(count, 7, np.int32), key) for key in range(40)]
    for order in orders:
        # Five standard deviations of a correlation of independent numbers.
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(count)
        assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 5 / np.sqrt(count)
    firsts = np.concatenate([order[: BLOCK // 10] for order in orders])
    hits = np.bincount(firsts * 10 // count, minlength=10)
    assert hits.min() > 0.8 * len(firsts) / 10
    assert len({order.tobytes() for order in orders}) == len(orders)


def test_sources_that_take_turns_do_not_fall_into_blocks_of_their_own() -> None:
    """Eight sources, item by item, in eight blocks: every stretch has its share of each."""
    order = slots.deal_order(np.full(8 * BLOCK, 7, np.int32), 5)
    for part in np.split(order, 16):
        assert np.bincount(part % 8, minlength=8).max() < 2 * len(part) / 8
