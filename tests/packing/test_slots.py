"""From packs of lengths to slots of items, evened out, for each composition."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlm_mix import vlm_mix

from packidx.packing import slots
from packidx.packing.solve import Problem, solve_problem
from packidx.packing.strategies.balanced import even_out
from packidx.permutation import permutation

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


SLOTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60
)


def columns(slots: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ordered = sorted(slots, key=lambda slot: -slot[0])
    length, pack, cost = np.array(ordered, np.int64).T
    return pack, length, cost


def rounds_of(members: list[int], pack: list[int]) -> list[list[list[int]]]:
    """Slots of one length, by how-manieth of its pack; those served together in one list."""
    nth: dict[int, list[int]] = {}
    seen: dict[int, int] = {}
    for slot in members:
        nth.setdefault(seen.get(pack[slot], 0), []).append(slot)
        seen[pack[slot]] = seen.get(pack[slot], 0) + 1
    groups = groupby(sorted(nth), key=lambda number: number.bit_length())
    return [[nth[number] for number in numbers] for _, numbers in groups]


def greedy(pack: list[int], length: list[int], cost: list[int], key: int) -> list[int]:
    """The packs' costs after the rule of `even_out`, slot by slot."""
    tie = {p: at for at, p in enumerate(permutation(max(pack) + 1, key).tolist())}
    total = [0] * (max(pack) + 1)
    for _, members in groupby(range(len(pack)), key=lambda slot: length[slot]):
        slots = list(members)
        left = sorted((cost[slot] for slot in slots), reverse=True)
        for together in rounds_of(slots, pack):
            before = total.copy()
            for nth, one in enumerate(together):
                sign = -1 if nth % 2 else 1
                for slot in sorted(one, key=lambda s: (sign * before[pack[s]], tie[pack[s]])):
                    total[pack[slot]] += left.pop(0)
    return total


@given(SLOTS, st.integers(0, 3))
def test_items_move_among_equal_lengths_by_the_greedy_rule(
    slots: list[tuple[int, int, int]], key: int
) -> None:
    pack, length, cost = columns(slots)
    item = even_out(pack, length, cost, key)
    assert sorted(item.tolist()) == list(range(len(slots)))
    assert (length[item] == length).all()
    total = np.bincount(pack, cost[item]).astype(int).tolist()
    assert total == greedy(pack.tolist(), length.tolist(), cost.tolist(), key)


N = 2000


def problem(**most: int) -> Problem:
    """A mix of text and media; `most` of the columns of that name are caps."""
    columns = vlm_mix(N)
    caps = {name: (columns[name], cap) for name, cap in most.items()}
    return Problem(columns["length"], 8192, caps, columns["vision_cost"])


@pytest.mark.parametrize("cap", [{}, {"num_images": 24}, {"num_images": 10**6}], ids=str)
@pytest.mark.parametrize(
    "strategy", ["auto", "balanced", "lp", "knapsack", "next-fit", "window:99"]
)
def test_a_key_makes_one_solution(strategy: str, cap: dict[str, int]) -> None:
    given = problem(**cap)
    ours, again, other = (solve_problem(given, strategy, key).slots for key in (5, 5, 6))
    assert sorted(ours.item.tolist()) == [*range(N)]
    for name in ("item", "pack", "position"):
        assert np.array_equal(getattr(ours, name), getattr(again, name))
    assert not np.array_equal(ours.item, other.item)
