"""Every combination of options keeps every promise: samples once, caps, groups, copies, epochs."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packidx import open_index, plan_packs
from packidx.errors import FormatError, PackidxError
from packidx.format.parquet import conform_table
from packidx.format.schema import LENGTHS
from packidx.format.terms import NOT_ELIGIBLE

ARBITRARY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

Row = dict[str, Any]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of a lengths table: text, images and videos of three sources, some rejected."""
    rows: list[Row] = []
    for number in range(draw(st.integers(1, 40))):
        images, videos = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (3, 0), (0, 1), (1, 1)]))
        tokens = 3 * images + 4 * videos
        text = draw(st.integers(0, 30))
        first = draw(st.integers(0, text))
        rows.append(
            {
                "sample_id": number,
                "source": draw(st.sampled_from(["a", "b", "c"])),
                "key": f"k{number}",
                "shard": number // 7,
                "row": number % 7,
                "length": text + tokens,
                "label_tokens": draw(st.one_of(st.none(), st.integers(0, text))),
                "image_tokens": 3 * images,
                "video_tokens": 4 * videos,
                "num_images": images,
                "num_videos": videos,
                "vision_patches": 4 * tokens,
                "vision_cost": 16 * tokens * tokens,
                "media": [
                    {"kind": "image", "tokens": 3, "patches": 12, "t": 1, "at": first + 3 * n}
                    for n in range(images)
                ]
                if not videos
                else None,
                "method": "exact",
                "status": draw(st.sampled_from(["ok"] * 9 + ["rejected"])),
                "reason": "bad_json",
            }
        )
    return rows


OPTIONS = st.fixed_dictionaries(
    {"capacity": st.integers(4, 60)},
    optional={
        "strategy": st.sampled_from(
            ["auto", "bfd", "balanced", "lp", "knapsack", "first-fit", "next-fit", "window:7"]
        ),
        "seed": st.integers(0, 3),
        "on_long": st.sampled_from(["drop", "split", "truncate"]),
        "margin": st.sampled_from([0.0, 0.3]),
        "max_images": st.integers(1, 4),
        "max_vision_patches": st.integers(12, 100),
        "max_samples": st.integers(1, 4),
        "group_by": st.sampled_from(["source", "media_type"]),
        "align": st.sampled_from([2, 4]),
        "pad_pack_to": st.sampled_from([2, 3]),
        "reserve": st.sampled_from([0, 12]),
        "mix": st.sampled_from([("a=2",), ("b=0.5", "c=3"), ("a=0",)]),
        "holdout": st.sampled_from(["0.1", "0.5"]),
        "holdout_only": st.sampled_from(["0.1", "0.5"]),
        "schedule": st.sampled_from(["stratified", "random"]),
        "global_batch": st.sampled_from([2, 4]),
        "micro_steps": st.sampled_from([1, 2]),
        "window": st.integers(3, 20),
    },
).filter(lambda options: not {"holdout", "holdout_only"} <= options.keys())


def write(path: Path, rows: list[Row]) -> Path:
    names = sorted({name for row in rows for name in row})
    columns = {n: pa.array([r.get(n) for r in rows], LENGTHS.field(n).type) for n in names}
    pq.write_table(conform_table(pa.table(columns), LENGTHS), path)
    return path


@ARBITRARY
@given(rows=tables(), options=OPTIONS)
def test_any_options_keep_every_promise(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], options: dict[str, Any]
) -> None:
    """What holds for every plan is checked by `plan_rules`: here is what the options say."""
    folder = tmp_path_factory.mktemp("rules")
    lengths = write(folder / "l.parquet", rows)
    try:
        summary = plan_packs(lengths, folder / "i", **options)
    except PackidxError as error:
        assert "\n" not in str(error)
        assert not isinstance(error, FormatError)
        return
    index = open_index(folder / "i")
    packs, samples = index.packs().to_pylist(), index.samples().to_pylist()
    dropped = {row["sample_id"]: row["reason"] for row in index.dropped().to_pylist()}
    members = defaultdict(list)
    for sample in samples:
        members[sample["pack_id"]].append(sample)
    align = options.get("align", 1)
    for pack in packs:
        inside = members[pack["pack_id"]]
        assert pack["num_samples"] <= options.get("max_samples", 999)
        assert pack["padded_length"] <= options["capacity"] - options.get("reserve", 0)
        assert pack["padded_length"] % options.get("pad_pack_to", 1) == 0
        assert (pack["num_images"] or 0) <= options.get("max_images", 999)
        assert (pack["vision_patches"] or 0) <= options.get("max_vision_patches", 999)
        if options.get("group_by") == "source":
            assert {s["source"] for s in inside} == {pack["group"]}
        if options.get("group_by") == "media_type":
            kinds = {bool(rows[s["sample_id"]]["num_videos"]) for s in inside}
            assert len(kinds) == 1
        assert all(s["padded_length"] == -(-s["length"] // align) * align for s in inside)
    eligible = (n for n in range(len(rows)) if dropped.get(n) not in NOT_ELIGIBLE)
    result = index.manifest["result"]
    assert result["num_tokens_eligible"] == sum(rows[n]["length"] for n in eligible)
    shuffled = write(folder / "s.parquet", rows[::-1])
    assert plan_packs(shuffled, folder / "j", **options).snapshot_id == summary.snapshot_id


def test_weights_are_copies_and_draws(tmp_path: Path) -> None:
    n = 3000
    source = np.array(["a", "b", "c"])[np.arange(n) % 3]
    table = pa.table({"length": np.full(n, 10), "source": source})
    pq.write_table(table, tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=100, mix=("a=2.5", "b=0.25"))
    index = open_index(tmp_path / "i")
    counts = Counter(index.samples(["source"])["source"].to_pylist())
    assert abs(counts["a"] - 2500) < 80 and abs(counts["b"] - 250) < 70 and counts["c"] == 1000
    copies = Counter(Counter(index.samples(["sample_id"])["sample_id"].to_pylist()).values())
    assert set(copies) == {1, 2, 3}
    reasons = Counter(index.dropped(["reason"])["reason"].to_pylist())
    assert reasons == {"mix": 1000 - counts["b"]}


def test_holdout_and_training_split_the_samples(tmp_path: Path) -> None:
    n = 5000
    keys = [f"sample-{i}" for i in range(n)]
    pq.write_table(pa.table({"length": np.full(n, 10), "key": keys}), tmp_path / "l.parquet")
    sides = {}
    for side, option in (("train", "holdout"), ("holdout", "holdout_only")):
        plan_packs(tmp_path / "l.parquet", tmp_path / side, capacity=100, **{option: 0.1})
        index = open_index(tmp_path / side)
        sides[side] = set(index.samples(["key"])["key"].to_pylist())
    assert sides["train"] | sides["holdout"] == set(keys)
    assert not sides["train"] & sides["holdout"]
    assert abs(len(sides["holdout"]) - 500) < 100
    # Another table, another order: the same keys are held out.
    pq.write_table(
        pa.table({"length": np.full(100, 7), "key": keys[::-50]}), tmp_path / "other.parquet"
    )
    plan_packs(tmp_path / "other.parquet", tmp_path / "o", capacity=70, holdout=0.1)
    kept = set(open_index(tmp_path / "o").samples(["key"])["key"].to_pylist())
    assert kept == set(keys[::-50]) & sides["train"]


def test_few_samples_many_times_over_stay_apart(tmp_path: Path) -> None:
    """Copies equal nothing but each other: what finds no partner gets packs of its own."""
    rng = np.random.default_rng(0)
    few = rng.choice(np.arange(100, 4000), 200, replace=False)
    table = pa.table(
        {
            "length": np.concatenate([rng.integers(100, 4000, 800), few]),
            "source": ["many"] * 800 + ["few"] * 200,
        }
    )
    pq.write_table(table, tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=8192, mix=("few=40",))
    index = open_index(tmp_path / "i")
    assert index.manifest["result"]["num_pieces"] == 800 + 40 * 200
    assert index.manifest["result"]["gap_percent"] < 5
