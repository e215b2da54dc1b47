"""From packs of lengths to slots of items; lower bounds; samples dealt to micro-batches."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import Int64s, fewest, optimum, problems, tiny_problems
from vlm_mix import vlm_mix

from packidx import balance_micro_batches
from packidx.errors import OptionError
from packidx.packing import slots
from packidx.packing.counts import (
    Histogram,
    joint_bound,
    lower_bound,
    martello_toth_l2,
    volume_bound,
    volume_packs,
)
from packidx.packing.solve import Problem, solve_problem
from packidx.packing.strategies.balanced import even_out
from packidx.packing.strategies.decreasing import best_fit_decreasing
from packidx.permutation import draw_permutation

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
    tie = {p: at for at, p in enumerate(draw_permutation(max(pack) + 1, key).tolist())}
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


NAMES = ("tokens", "num_images", "vision_patches", "samples")


@given(tiny_problems())
def test_bounds_never_exceed_the_optimum(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    best = fewest(lengths, capacity)
    assert volume_bound(histogram, capacity) <= best
    assert martello_toth_l2(histogram, capacity) <= best


def test_l2_proves_what_the_volume_cannot() -> None:
    histogram = Histogram.of(np.array([6, 6, 6, 5, 5]))
    assert volume_bound(histogram, 10) == 3
    assert lower_bound(histogram, 10) == (4, "L2")  # 6 6 6 alone, 5 + 5
    assert best_fit_decreasing(histogram, 10).total_packs == 4


@given(problems(most=8))
def test_the_joint_bound_never_exceeds_the_optimum(problem: tuple[Int64s, Int64s]) -> None:
    sizes, limits = problem
    bound, name = joint_bound(sizes, limits, NAMES[: len(limits)])
    assert 0 < volume_packs(sizes, limits) <= bound <= optimum(sizes, limits)
    assert name.split(" ", 1)[0] in NAMES


def test_a_single_limit_gives_its_own_bound_and_name() -> None:
    sizes = np.array([[1, 3], [1, 3], [1, 3], [1, 0]])
    assert joint_bound(sizes, np.array([100, 5]), ["tokens", "num_images"]) == (
        3,
        "num_images " + lower_bound(Histogram.of(np.array([3, 3, 3])), 5)[1],
    )
    assert joint_bound(np.array([[3], [3], [4]]), np.array([5]), ["tokens"])[0] == 3


CAPACITY = 8192


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 50), min_size=4, max_size=60),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_sample_once_and_as_many_micro_batches_on_each_rank(
    lengths: list[int], ranks: int, squares: bool
) -> None:
    cost = [length**2 for length in lengths] if squares else None
    try:
        dealt = balance_micro_batches(lengths, 100, ranks=ranks, cost=cost)
    except OptionError as error:  # each sample takes a micro-batch of its own
        assert "nothing to fill more with" in str(error)
        assert len(lengths) % ranks
        return
    assert len(dealt.ranks) == ranks
    assert len({len(own) for own in dealt.ranks}) == 1
    every = [batch for own in dealt.ranks for batch in own]
    assert sorted(n for batch in every for n in batch) == list(range(len(lengths)))
    for batch in every:
        assert batch and sum(lengths[n] for n in batch) <= 100
    for own, costs in zip(dealt.ranks, dealt.costs, strict=True):
        value = cost or lengths
        assert costs.tolist() == [sum(value[n] for n in batch) for batch in own]
    assert dealt.bound[0] <= len(every)


def test_micro_batches_at_one_turn_cost_about_the_same() -> None:
    lengths = np.random.default_rng(256).lognormal(6.5, 1, 256).clip(16, CAPACITY).astype(int)
    dealt = balance_micro_batches(lengths.tolist(), CAPACITY, ranks=4)
    spread = np.ptp(dealt.costs, axis=0)
    assert spread.sum() < np.ptp(dealt.costs) * dealt.costs.shape[1] / 2
    assert 1 <= dealt.balance < 1.2
    assert dealt.bound[0] <= dealt.costs.size < 1.1 * dealt.bound[0] + 4


@pytest.mark.parametrize("ranks", [1, 3])
def test_more_micro_batches_than_needed_balance_better(ranks: int) -> None:
    lengths = np.random.default_rng(0).lognormal(7, 0.4, 256).astype(int).tolist()
    cost = [24_576.0 * length + length**2 for length in lengths]
    fewest = balance_micro_batches(lengths, CAPACITY, ranks=ranks, cost=cost)
    more = balance_micro_batches(
        lengths, CAPACITY, ranks=ranks, cost=cost, at_least=fewest.costs.size + 4
    )
    assert more.costs.size == -(-(fewest.costs.size + 4) // ranks) * ranks
    assert more.costs.max() < fewest.costs.max()


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([5, 9000], {}, "sample 1 has 9000 tokens"),
        ([5, 0], {}, "sample 1 has no token"),
        ([5], {"ranks": 2}, "1 samples are too few for 2 micro-batches"),
        ([5, 5], {"at_least": 3}, "2 samples are too few for 3 micro-batches"),
        ([5, 5], {"cost": [1.0]}, "one number for each sample"),
        ([5, 5], {"ranks": 0}, "at least 1"),
        ([0, 100], {}, "sample 0 has no token"),
        ([10.5, 3], {}, "not a whole number"),
        ([1, 2], {"cost": [1.0, float("inf")]}, "infinite"),
    ],
)
def test_what_cannot_be_dealt(lengths: list[int], options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        balance_micro_batches(lengths, CAPACITY, **options)  # type: ignore[arg-type]
