"""Lower bounds in integers, against the exact optimum and their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from small_problems import optimum, tiny_problems

from packidx.packing.counts import Histogram, lower_bound, martello_toth_l2, volume_bound
from packidx.packing.strategies.decreasing import best_fit_decreasing


@given(tiny_problems())
def test_bounds_never_exceed_the_optimum(problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    histogram = Histogram.of(np.array(lengths))
    best = optimum(lengths, capacity)
    assert volume_bound(histogram, capacity) <= best
    assert martello_toth_l2(histogram, capacity) <= best


def test_l2_proves_what_the_volume_cannot() -> None:
    histogram = Histogram.of(np.array([6, 6, 6, 5, 5]))
    assert volume_bound(histogram, 10) == 3
    assert lower_bound(histogram, 10) == (4, "L2")  # 6 6 6 alone, 5 + 5
    assert best_fit_decreasing(histogram, 10).total_packs == 4
