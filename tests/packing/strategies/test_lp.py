"""Plan and bound by column generation: valid on every problem, and good on the hard ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import optimum, tiny_problems

from packidx.packing.counts import Histogram, PackRuns, volume_bound
from packidx.packing.strategies import lp as module
from packidx.packing.strategies.decreasing import best_fit_decreasing
from packidx.packing.strategies.lp import by_knots, linear_plan


def check(runs: PackRuns, histogram: Histogram, capacity: int) -> None:
    """Every sample placed once, in order, within the capacity; no empty pack."""
    dealt = np.repeat(histogram.lengths, histogram.counts)
    used = np.zeros(runs.total_packs, np.int64)
    held = np.zeros(runs.total_packs, np.int64)
    at = 0
    columns = (runs.first_pack, runs.num_packs, runs.per_pack, runs.position)
    for first, packs, each, position in zip(*(c.tolist() for c in columns), strict=True):
        run = slice(first, first + packs)
        samples = dealt[at : at + packs * each]
        assert samples[0] == samples[-1]
        assert (held[run] == position).all()
        used[run] += samples[0] * each
        held[run] += each
        at += packs * each
    assert at == len(dealt)
    assert runs.total_packs == 0 or (used.max() <= capacity and held.min() > 0)


def uniform(low: float, high: float, num: int, capacity: int) -> Histogram:
    rng = np.random.default_rng(0)
    return Histogram.of((rng.uniform(low, high, num) * capacity).astype(np.int64))


@given(tiny_problems())
def test_bound_optimum_and_plan_stand_in_this_order(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    plan = linear_plan(histogram, capacity)
    assert plan.bound <= optimum(lengths, capacity) <= plan.runs.total_packs
    assert plan.runs.total_packs <= best_fit_decreasing(histogram, capacity).total_packs
    check(plan.runs, histogram, capacity)


@given(
    st.integers(1, 400).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=60), st.just(c))
    ),
    st.integers(1, 8),
)
def test_few_knots_and_classes_are_valid_too(problem: tuple[list[int], int], num: int) -> None:
    """Coarse relaxations, with sand: the bound below any plan, the plan complete."""
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    runs = module._round_plan(histogram, capacity, max(num, 4))
    check(runs, histogram, capacity)
    relaxation = by_knots(histogram, capacity, num)
    if relaxation is not None:
        bound = module._start_master(relaxation).solve(1 << 40).bound
        best = best_fit_decreasing(histogram, capacity).total_packs
        assert bound <= min(best, runs.total_packs)


@given(tiny_problems())
def test_the_bound_holds_whatever_the_prices(problem: tuple[list[int], int]) -> None:
    """The certificate is the knapsack's: the simplex may return anything."""
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    relaxation = by_knots(histogram, capacity, 2)
    if relaxation is None:
        return
    rng = np.random.default_rng(sum(lengths))
    with pytest.MonkeyPatch.context() as patch:

        def scramble(self: module.Master, max_pivots: int) -> None:
            self.prices = rng.uniform(0, 1, len(self.prices))
            self.num_pivots += 1

        patch.setattr(module.Master, "solve", scramble)
        patch.setattr(module, "_MAX_ROUNDS", 5)
        assert module._start_master(relaxation).solve(1 << 40).bound <= optimum(lengths, capacity)


def test_sand_fills_what_the_patterns_leave() -> None:
    """A tenth of the tokens in short samples: the bound counts them, the plan hides them."""
    long = uniform(0.25, 0.5, 5_000, 1024)
    tokens = 0.1 * long.num_tokens
    short = np.random.default_rng(1).integers(2, 31, int(tokens / 16))
    lengths = np.concatenate([np.repeat(long.lengths, long.counts), short])
    histogram = Histogram.of(lengths)
    plan = linear_plan(histogram, 1024)
    check(plan.runs, histogram, 1024)
    assert plan.bound >= linear_plan(long, 1024).bound
    relaxation = by_knots(histogram, 1024, 32)
    assert relaxation is not None and relaxation.sand > 0
    bound = module._start_master(relaxation).solve(1 << 40).bound
    assert bound >= 0.999 * volume_bound(histogram, 1024)
    assert plan.runs.total_packs <= 1.01 * plan.bound


@pytest.mark.parametrize(
    ("lengths", "capacity", "packs"),
    [
        ([1] * 7, 1, 7),
        ([34] * 100, 100, 50),
        ([100] * 5, 100, 5),
        ([51, 52, 53, 99], 100, 4),
        ([2] * 999, 131_072, 1),
        ([1, 10**9 - 1, 7 * 10**8, 3 * 10**8], 10**9, 2),
        ([1, 2, 5000, 70_000, 60_000], 131_072, 2),
        ([6, 5, 5, 4, 4, 3, 3] * 10, 10, 30),
    ],
)
def test_odd_problems_are_proven(lengths: list[int], capacity: int, packs: int) -> None:
    histogram = Histogram.of(np.array(lengths))
    plan = linear_plan(histogram, capacity)
    check(plan.runs, histogram, capacity)
    assert (plan.bound, plan.runs.total_packs) == (packs, packs)
