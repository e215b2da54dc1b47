"""What a schedule is worth, against sums by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packidx.inspect.waiting import RANKS, ScheduledPacks, ranks_stats


def packs(n: int, seed: int = 0, **without: None) -> ScheduledPacks:
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "llm": rng.random(n) * 1e14,
        "vit": rng.random(n) * 1e13,
        "vision": rng.integers(0, 50, n),
    }
    return ScheduledPacks(**(columns | without))


@given(st.integers(0, 120), st.sampled_from([1, 2, 4, 6, 9]), st.sampled_from([4, 12, 20]))
def test_the_planned_order_by_hand(n: int, ranks: int, batch: int) -> None:
    given = packs(n, n)
    (found,) = ranks_stats(given, batch, [ranks])
    step = math.ceil(batch / ranks) * ranks
    steps = n // step
    assert (found["ranks"], found["global_batch"], found["steps"]) == (ranks, step, steps)
    assert found["micro_steps"] * ranks == step
    if not steps:
        assert found["planned"] is found["random"] is found["by_vision_tokens"] is None
        return
    whole = steps * step
    total = (given.llm + given.vit)[:whole].reshape(-1, ranks)
    apart = [cost[:whole].reshape(-1, ranks).max(axis=1).sum() for cost in (given.llm, given.vit)]
    plan = found["planned"]
    assert plan["useful"] == pytest.approx(total.mean(axis=1).sum() / total.max(axis=1).sum(), 1e-4)
    assert plan["useful_by_phase"] == pytest.approx(total.mean(axis=1).sum() / sum(apart), 1e-4)
    assert plan["useful_by_phase"] <= plan["useful"] + 1e-6 <= 1 + 1e-6


def test_unknown_columns_and_few_packs_are_null() -> None:
    stats = ranks_stats(packs(600, vision=None), 64)
    assert [one["ranks"] for one in stats] == list(RANKS)
    assert [one["global_batch"] for one in stats] == [64, 64, 512]
    assert [one["steps"] for one in stats] == [9, 9, 1]
    assert all(one["by_vision_tokens"] is None for one in stats)
    assert stats[2]["planned"]["useful"]
    assert json.loads(json.dumps(stats, allow_nan=False)) == stats
    nothing = ranks_stats(packs(0), 64)
    assert all(one["planned"] is None and one["steps"] == 0 for one in nothing)
