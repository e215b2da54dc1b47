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
    length = rng.integers(50, 100, n)
    vision = rng.integers(0, 50, n)
    columns: dict[str, Any] = {
        "llm": rng.random(n) * 1e14,
        "vit": rng.random(n) * 1e13,
        "length": length,
        "vision": vision,
        "sources": np.stack([vision, length - vision], axis=1),
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
        assert found["autocorrelation_by_chance"] is None
        return
    whole = steps * step
    total = (given.llm + given.vit)[:whole].reshape(-1, ranks)
    apart = [cost[:whole].reshape(-1, ranks).max(axis=1).sum() for cost in (given.llm, given.vit)]
    plan = found["planned"]
    assert plan["useful"] == pytest.approx(total.mean(axis=1).sum() / total.max(axis=1).sum(), 1e-4)
    assert plan["useful_by_phase"] == pytest.approx(total.mean(axis=1).sum() / sum(apart), 1e-4)
    assert plan["useful_by_phase"] <= plan["useful"] + 1e-6 <= 1 + 1e-6
    assert found["autocorrelation_by_chance"] == pytest.approx(1 / math.sqrt(steps), abs=1e-6)
    cost = total.reshape(steps, -1).sum(axis=1)
    off = cost - cost.mean()
    if steps >= 3:
        by_hand = (off[1:] * off[:-1]).sum() / (off * off).sum()
        assert plan["autocorrelation"] == pytest.approx(by_hand, abs=1e-4)
    else:
        assert plan["autocorrelation"] is None
    if steps >= 2:
        sums = [
            column[:whole].reshape(steps, -1).sum(axis=1) for column in (given.vision, given.length)
        ]
        assert plan["vision_spread"] == pytest.approx(np.std(sums[0] / sums[1]), abs=2e-6)
        ratio = plan["vision_spread"] / found["random"]["vision_spread"]
        assert plan["vision_spread_vs_random"] == pytest.approx(ratio, rel=1e-2)
        # Both sources are what is visual and what is not: they spread alike.
        assert plan["source_spread_vs_random"] == pytest.approx(plan["vision_spread_vs_random"])
        assert found["random"]["vision_spread_vs_random"] == 1
    else:
        assert plan["vision_spread"] is None and plan["source_spread_vs_random"] is None


def test_unknown_columns_and_few_packs_are_null() -> None:
    stats = ranks_stats(packs(600, vision=None, sources=None), 64)
    assert [one["ranks"] for one in stats] == list(RANKS)
    assert [one["global_batch"] for one in stats] == [64, 64, 512]
    assert [one["steps"] for one in stats] == [9, 9, 1]
    assert all(one["by_vision_tokens"] is None for one in stats)
    assert stats[0]["planned"]["vision_spread"] is None
    assert stats[0]["planned"]["source_spread_vs_random"] is None
    assert stats[2]["planned"]["useful"] and stats[2]["planned"]["autocorrelation"] is None
    assert json.loads(json.dumps(stats, allow_nan=False)) == stats
    nothing = ranks_stats(packs(0), 64)
    assert all(one["planned"] is None and one["steps"] == 0 for one in nothing)
