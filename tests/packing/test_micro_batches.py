"""Samples of one step, dealt to micro-batches and ranks."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packidx import balance_micro_batches
from packidx.errors import OptionError

CAPACITY = 8192


def karmarkar_karp(costs: list[float], number: int) -> float:
    """The largest sum of `number` parts, by a plain list of lists."""
    heap = []
    for turn, cost in enumerate(costs):
        heap.append((-cost, turn, [cost] + [0.0] * (number - 1)))
    heapify(heap)
    while len(heap) > 1:
        _, turn, one = heappop(heap)
        _, _, two = heappop(heap)
        sums = sorted((a + b for a, b in zip(one, reversed(two), strict=True)), reverse=True)
        heappush(heap, (sums[-1] - sums[0], turn, sums))
    return max(heap[0][2])


def mixes(number: int) -> dict[str, list[int]]:
    draw = np.random.default_rng(number)
    short, long = draw.integers(200, 500, number), draw.integers(4000, 7000, number)
    return {
        "log-normal": np.clip(draw.lognormal(6.5, 1, number), 16, CAPACITY).astype(int).tolist(),
        "uniform": draw.integers(100, 4000, number).tolist(),
        "bimodal": np.where(draw.random(number) < 0.5, short, long).tolist(),
    }


@pytest.mark.parametrize("number", [64, 256, 512])
@pytest.mark.parametrize("name", ["log-normal", "uniform", "bimodal"])
def test_costs_are_as_equal_as_karmarkar_and_karp_make_them(number: int, name: str) -> None:
    lengths = mixes(number)[name]
    dealt = balance_micro_batches(lengths, CAPACITY, ranks=4)
    micro_batches = sum(map(len, dealt.ranks))
    largest = karmarkar_karp([float(length) for length in lengths], micro_batches)
    assert dealt.costs.max() <= largest
    assert dealt.bound[0] <= micro_batches < 1.1 * dealt.bound[0] + 4


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
    dealt = balance_micro_batches(mixes(256)["log-normal"], CAPACITY, ranks=4)
    spread = np.ptp(dealt.costs, axis=0)
    assert spread.sum() < np.ptp(dealt.costs) * dealt.costs.shape[1] / 2
    assert 1 <= dealt.balance < 1.2


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
