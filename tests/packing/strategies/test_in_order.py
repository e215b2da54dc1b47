"""The peers' rules equal straightforward loops, and NeMo where it is installed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sized_items import Int64s, Problem, assert_plan, problems

from packidx.packing.strategies.in_order import first_fit, next_fit, window_fit, worst_fit


def loop(sizes: Int64s, limits: Int64s, rule: str) -> list[int]:
    """One item after another, in the order given, looking at every pack."""
    rooms: list[Int64s] = []
    packs = []
    for size in sizes:
        able = [k for k, room in enumerate(rooms) if (room >= size).all()]
        if rule == "next":
            able = able[-1:] if able and able[-1] == len(rooms) - 1 else []
        elif rule == "least":
            able.sort(key=lambda k: (rooms[k][0], k))
        elif rule == "most":
            able.sort(key=lambda k: (-rooms[k][0], k))
        if not able:
            rooms.append(limits.copy())
        packs.append(able[0] if able else len(rooms) - 1)
        rooms[packs[-1]] -= size
    return packs


def decreasing(sizes: Int64s, limits: Int64s, rule: str) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item, 0])
    packs = dict(zip(order, loop(sizes[order], limits, rule), strict=True))
    return [packs[item] for item in range(len(sizes))]


@given(problems())
def test_rules_in_the_order_given(problem: Problem) -> None:
    assert next_fit(*problem).tolist() == loop(*problem, "next")
    assert first_fit(*problem).tolist() == loop(*problem, "first")
    for pack in (next_fit(*problem), first_fit(*problem)):
        assert_plan(pack, *problem)
        assert np.array_equal(np.unique(pack, return_index=True)[1].argsort(), np.unique(pack))


@given(problems())
def test_worst_fit_decreasing(problem: Problem) -> None:
    pack = worst_fit(*problem)
    assert_plan(pack, *problem)
    assert pack.tolist() == decreasing(*problem, "most")


@given(problems(), st.integers(1, 70))
def test_windows(problem: Problem, window: int) -> None:
    sizes, limits = problem
    expected: list[int] = []
    for begin in range(0, len(sizes), window):
        opened = max(expected, default=-1) + 1
        part = decreasing(sizes[begin : begin + window], limits, "least")
        expected += [opened + pack for pack in part]
    pack = window_fit(sizes, limits, window)
    assert_plan(pack, *problem)
    assert pack.tolist() == expected
