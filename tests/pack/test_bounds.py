"""Lower bounds in integers, against the exact optimum and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
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
