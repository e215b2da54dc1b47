"""A second cost, evened out among equal lengths."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.pack.even import even_out
from packidx.permutation import permutation

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


def test_ties_are_broken_by_the_key() -> None:
    pack, length = np.arange(200), np.full(200, 7)
    cost = np.arange(200) % 2
    costly = [tuple(np.flatnonzero(cost[even_out(pack, length, cost, key)])) for key in (1, 1, 2)]
    assert costly[0] == costly[1] != costly[2]
    # Not by position: neither half of the packs has all of the costly items.
    assert 20 < sum(slot < 100 for slot in costly[0]) < 80


def test_nothing_is_evened_out_of_nothing() -> None:
    empty = np.empty(0, np.int64)
    assert even_out(empty, empty, empty, 0).tolist() == []


def test_slots_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="longest first"):
        even_out(np.array([0, 1]), np.array([3, 4]), np.array([1, 2]), 0)
