"""A dry run against the plans it predicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import write_lengths

from packidx.errors import OptionError, SourceError
from packidx.plan import PlanOptions, plan_packs
from packidx.plan.preview import preview, unseen

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_lengths, tmp_path)


def some_lengths(count: int = 2000) -> list[int]:
    return np.random.default_rng(3).lognormal(4, 1, count).astype(int).tolist()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"on_long": "split"},
    {"on_long": "truncate"},
    {"shift": True, "on_long": "split"},
    {"margin": 0.07},
    {"margin": 0.1, "align": 8, "on_long": "split"},
    {"align": 16},
    {"align": 16, "shift": True, "on_long": "truncate"},
    {"pad_pack_to": 48, "on_long": "split"},
]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_a_preview_is_the_plan(write: Write, tmp_path: Path, changes: dict[str, Any]) -> None:
    uri = write(length=[*some_lengths(), 0, 1, None, -3])
    options = PlanOptions(1 << 20, strategy="bfd", **changes)
    rows = preview(uri, [300, 131], options)
    assert [row.capacity for row in rows] == [300, 131]
    for row in rows:
        plan = plan_packs(uri, tmp_path / "index", options, capacity=row.capacity).manifest
        result, dropped = plan["result"], plan["result"]["dropped"]
        assert row.planned_capacity == plan["options"]["planned_capacity"]
        assert row.num_packs == result["num_packs"]
        assert row.num_tokens == result["num_tokens"]
        assert row.num_samples == result["num_samples"]
        assert row.num_dropped == dropped.get("too_long", 0)
        assert row.num_unusable == result["num_dropped"] - row.num_dropped
        assert row.tokens_cut == result["num_tokens_cut"]
        assert row.fill == result["fill"]
        assert row.lower_bound <= result["lower_bound"] <= row.num_packs
        assert row.gap == row.num_packs - row.lower_bound
        assert row.lower_bound > 0 and row.num_refused == 0


def test_media_in_what_is_cut_is_told(write: Write) -> None:
    uri = write(length=[30, 80, 90, 95], image_tokens=[20, 20, 0, None], video_tokens=[0, 0, 0, 7])
    (row,) = preview(uri, [64], PlanOptions(64, on_long="split"))
    assert (row.num_cut, row.num_cut_with_media) == (3, 2)
    assert preview(uri, [64])[0].num_cut_with_media == 0


def test_impossible_previews_are_refused(write: Write) -> None:
    uri = write(length=[0, None])
    with pytest.raises(SourceError, match=r"holds no usable sample \(2 rows\): nothing to pack"):
        preview(uri, [10])
    with pytest.raises(OptionError, match="capacity is missing: name one or more"):
        preview(uri, [])
    with pytest.raises(OptionError, match="capacity is 0"):
        preview(uri, [10, 0])
    with pytest.raises(SourceError, match="does not exist"):
        preview(uri + "x", [10])


def test_options_that_a_preview_does_not_see_are_named() -> None:
    assert unseen(PlanOptions(10, seed=4, margin=0.1, align=2, reserve=2, on_long="split")) == []
    given = PlanOptions(10, mix=("a=2",), max_images=3, holdout="0.1", window=2)
    assert unseen(given) == ["--max-images", "--holdout", "--window", "--mix"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 60))
def test_any_lengths_have_a_preview(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], capacity: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.parquet"
    pq.write_table(pa.table({"length": lengths}), path)
    for how in ("drop", "split", "truncate"):
        (row,) = preview(str(path), [capacity], PlanOptions(1, on_long=how))
        assert row.num_tokens <= row.num_packs * capacity
        assert row.num_tokens + row.dropped_tokens + row.tokens_cut == sum(lengths)
        assert 0 <= row.fill <= 1
