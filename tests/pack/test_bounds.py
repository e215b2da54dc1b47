"""Lower bounds in integers, against the exact optimum and their definitions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import optimum, tiny_problems

from packidx.pack.bounds import dual_feasible, lower_bound, martello_toth_l2, volume_bound
from packidx.pack.counts import Histogram
from packidx.pack.strategies.decreasing import best_fit_decreasing


@given(tiny_problems())
def test_bounds_never_exceed_the_optimum(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    best = optimum(lengths, capacity)
    assert volume_bound(histogram, capacity) <= best
    assert martello_toth_l2(histogram, capacity) <= best
    assert dual_feasible(histogram, capacity) <= best


@given(
    st.integers(1, 60).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=80), st.just(c))
    )
)
def test_l2_is_the_maximum_over_all_thresholds(problem: tuple[list[int], int]) -> None:
    """Against the definition, threshold by threshold."""
    lengths, capacity = problem
    values = []
    for a in range(capacity // 2 + 1):
        large = [x for x in lengths if x > capacity - a]
        medium = [x for x in lengths if capacity / 2 < x <= capacity - a]
        small = [x for x in lengths if a <= x <= capacity / 2]
        overflow = sum(small) - (len(medium) * capacity - sum(medium))
        values.append(len(large) + len(medium) + max(0, -(-overflow // capacity)))
    assert martello_toth_l2(Histogram.of(np.array(lengths)), capacity) == max(values)


@given(tiny_problems(60))
def test_dual_feasible_functions_are_the_published_ones(problem: tuple[list[int], int]) -> None:
    """u^(k) as Fekete and Schepers write it, in fractions; ours tries these and more."""
    lengths, capacity = problem
    for k in range(1, 41):
        total = Fraction(0)
        for x in (Fraction(length, capacity) for length in lengths):
            parts = (k + 1) * x
            total += x if parts.denominator == 1 else Fraction(int(parts), k)
        assert dual_feasible(Histogram.of(np.array(lengths)), capacity) >= -(-total // 1)


def test_l2_proves_what_the_volume_cannot() -> None:
    histogram = Histogram.of(np.array([6, 6, 6, 5, 5]))
    assert volume_bound(histogram, 10) == 3
    assert lower_bound(histogram, 10) == (4, "L2")  # 6 6 6 alone, 5 + 5
    assert best_fit_decreasing(histogram, 10).total_packs == 4


@pytest.mark.parametrize("length", [34, 26, 21, 9])
def test_dual_feasible_functions_prove_what_l2_cannot(length: int) -> None:
    """Equals that fill a pack badly: as many as fit, and no bound but this sees it."""
    histogram = Histogram.of(np.full(100, length))
    needed = -(-100 // (100 // length))
    assert martello_toth_l2(histogram, 100) < needed
    assert lower_bound(histogram, 100) == (needed, "DFF")


def test_pairs_around_the_half_are_proven_without_the_linear_program() -> None:
    """A sample of 62 leaves room for one of 38, never for one of 39: f_CCM counts in cells."""
    histogram = Histogram.of(np.repeat([62, 45, 39], [50, 25, 25]))
    assert martello_toth_l2(histogram, 100) < 75
    assert lower_bound(histogram, 100) == (75, "DFF")
    assert best_fit_decreasing(histogram, 100).total_packs == 75


def test_no_sample_needs_no_pack() -> None:
    assert lower_bound(Histogram.of(np.empty(0, np.int64)), 10) == (0, "volume")
