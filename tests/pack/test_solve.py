"""Solutions are data: sent to another process, they compose the same packs."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from vlm_mix import vlm_mix

from packidx.errors import OptionError
from packidx.pack.solve import Problem, solve

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
def test_a_sent_solution_composes_the_same_packs(strategy: str, cap: dict[str, int]) -> None:
    given = problem(**cap)
    solution = solve(given, strategy, 5)
    sent = pickle.loads(pickle.dumps(solution))
    for key in (5, 6):
        ours, theirs = solution.slots(given, key), sent.slots(given, key)
        for name in ("item", "pack", "position"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    assert sent.num_packs == solution.num_packs


def test_caps_are_solved_anew_for_another_composition_alone() -> None:
    given = problem(num_images=24)
    solution = solve(given, "auto", 5)
    assert solution.strategy == "capped" and solution.pack is not None
    assert solution.num_packs == solution.slots(given, 5).num_packs
    other = replace(solution, pack=solution.pack[::-1].copy())
    assert not np.array_equal(solution.slots(given, 5).pack, other.slots(given, 5).pack)
    assert np.array_equal(solution.slots(given, 6).pack, other.slots(given, 6).pack)


def test_a_strategy_that_is_none_is_no_other_one() -> None:
    for caps in ({}, {"num_images": 24}):
        with pytest.raises(OptionError, match="no strategy 'no such'"):
            solve(problem(**caps), "no such", 5)
