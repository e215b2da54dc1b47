"""Every combination of options keeps every promise, gives the same bytes, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_rules import broken_rules
from vlm_mix import write_mix

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import FormatError, OptionError, PackidxError, SourceError
from packidx.format.parquet import conform_table
from packidx.format.schema import LENGTHS
from packidx.format.terms import NOT_ELIGIBLE
from packidx.index import Index

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


def test_few_lengths_many_times_over_are_packed_well(tmp_path: Path) -> None:
    """What finds no partner gets packs of its own."""
    rng = np.random.default_rng(0)
    few = rng.choice(np.arange(100, 4000), 200, replace=False)
    lengths = np.concatenate([rng.integers(100, 4000, 800), few])
    table = pa.table({"length": lengths, "source": ["many"] * 800 + ["few"] * 200})
    pq.write_table(table, tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=8192, mix=("few=40",))
    result = open_index(tmp_path / "i").snapshot.result
    assert result.num_pieces == 800 + 40 * 200 and result.gap_percent < 5


def test_holdout_and_training_split_the_samples(tmp_path: Path) -> None:
    keys = [f"sample-{i}" for i in range(500)]
    pq.write_table(pa.table({"length": [10] * 500, "key": keys}), tmp_path / "l.parquet")
    sides = []
    for side in ("holdout", "holdout_only"):
        plan_packs(tmp_path / "l.parquet", tmp_path / side, capacity=100, **{side: 0.1})
        sides.append(open_index(tmp_path / side).samples(["key"])["key"].to_pylist())
    assert sorted(sides[0] + sides[1]) == sorted(keys) and 20 < len(sides[1]) < 80


N = 30_000


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mix(tmp_path_factory.mktemp("mix") / "lengths.parquet", N)


def parquet_bytes(index: Path) -> dict[str, bytes]:
    found = sorted(index.glob("windows/*/*.parquet"))
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}


RULES: list[dict[str, Any]] = [
    {"max_images": 32, "max_vision_patches": 24576, "max_samples": 64},
    {"group_by": "media_type"},
    {"window": 9000, "schedule": "random"},
    {"mix": ("source-0=0.3", "source-1=2"), "holdout": "0.05", "strategy": "balanced"},
    {"strategy": "lp", "align": 16, "pad_pack_to": 128},
]


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules))
def test_threads_change_no_byte(lengths: Path, tmp_path: Path, rules: dict[str, Any]) -> None:
    code = (
        "import sys; from packidx import plan_packs;"
        f"plan_packs(sys.argv[1], sys.argv[2], capacity=8192, **{rules!r})"
    )
    for threads in ("1", "2"):
        names = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "ARROW_IO_THREADS")
        env = os.environ | dict.fromkeys(names, threads)
        place = tmp_path / threads
        subprocess.run([sys.executable, "-c", code, lengths, place], env=env, check=True)
    one, two = parquet_bytes(tmp_path / "1"), parquet_bytes(tmp_path / "2")
    assert len(one) >= 2
    assert one == two
    assert broken_rules(open_index(tmp_path / "1")) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 1}, "below every usable sample"),
        ({"strategy": "magic"}, "strategy is 'magic'"),
        ({"on_long": "eat"}, "on-long is 'eat'"),
        ({"on_long": "error", "capacity": 300}, "sample"),
        ({"margin": 1.0}, "margin is 1.0"),
        ({"margin": float("nan")}, "margin is nan"),
        ({"capacity": 10, "margin": 0.95}, "leaves no token"),
        ({"max_images": -1}, "max-images is -1"),
        ({"max_vision_patches": 0}, "max-vision-patches is 0"),
        ({"max_samples": -3}, "max-samples is -3"),
        ({"align": 0}, "align is 0"),
        ({"align": 9000}, "align is 9000: it must be 1 to 8192"),
        ({"pad_pack_to": 8192, "margin": 0.5}, "too few for align 1 and pad-pack-to 8192"),
        ({"reserve": -1}, "reserve is -1"),
        ({"reserve": 3, "align": 2}, "reserve 3 is not a multiple of align 2"),
        ({"reserve": 8192}, "leaves no token beside the 8192 in reserve"),
        ({"strategy": "window:N"}, "strategy is 'window:N'"),
        ({"strategy": "window:0"}, "strategy is 'window:0'"),
        ({"schedule": "sorted"}, "schedule is 'sorted'"),
        ({"group_by": "color"}, "group-by is 'color'"),
        ({"mix": ("nobody=1",)}, "nobody"),
        ({"mix": ("source-0=-1",)}, "source-0"),
        ({"mix": ("source-0",)}, "source-0"),
        ({"mix": ("a=1", "b=30%")}, "which is none: give all sources a share, or none"),
        ({"holdout": 1.5}, "holdout is '1.5'"),
        ({"holdout": "1e-999999999"}, "holdout is"),
        ({"holdout": "nan"}, "holdout is .*: give a share of the samples"),
        ({"holdout": 0.1, "holdout_only": 0.1}, "plan one side each"),
        ({"cost": "nobodys-model"}, "nobodys-model"),
        ({"global_batch": 12, "micro_steps": 8}, "not a multiple of the 8 micro-steps"),
        ({"window": 0}, "window is 0: it must be 1 to"),
        ({"window": "lots"}, "window is 'lots': say it like 64, or 4GB"),
        ({"exclude": "nowhere.parquet"}, "nowhere.parquet"),
        ({"seed": 1 << 70}, "seed is"),
        ({"on_long": None}, "on-long is None, which is not text"),
        ({"align": None}, "align is None, which is not an integer"),
    ],
)
def test_bad_options_get_one_sentence(
    lengths: Path, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((OptionError, SourceError), match=says) as caught:
        plan_packs(lengths, tmp_path / "i", **{"capacity": 8192, **options})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "i").exists()


def lengths_of(folder: Path, shards: int) -> Path:
    """Lengths of files of 40 tokenized records, every file with lengths of its own."""
    (folder / "data").mkdir()
    for number in range(shards):
        rng = np.random.default_rng(number)
        lines = [
            json.dumps({"id": f"{number}-{row}", "input_ids": [7] * int(length)})
            for row, length in enumerate(rng.integers(5, 120, 40))
        ]
        (folder / "data" / f"shard-{number:03d}.jsonl").write_text("\n".join(lines) + "\n")
    estimate_lengths([f"all={folder}/data"], folder / f"lengths-{shards}", workers=1)
    return folder / f"lengths-{shards}"


def test_a_window_is_a_run_of_shards(tmp_path: Path) -> None:
    lengths = lengths_of(tmp_path, 10)
    plan_packs(lengths, tmp_path / "i", capacity=256, window=4)
    index = open_index(tmp_path / "i")
    placed = index.snapshot.placed
    assert [(one.first_row, one.window.num_rows) for one in placed] == [
        (0, 160),
        (160, 160),
        (320, 80),
    ]
    window = np.repeat(
        index.packs(["window"])["window"].to_numpy(),
        index.packs(["num_samples"])["num_samples"].to_numpy(),
    )
    shard = index.samples(["shard"])["shard"].to_numpy()
    assert (shard // 4 == window).all()
    assert sum(one.window.num_packs for one in placed) == index.num_packs
    ours = shards_per_pack(index)
    plan_packs(lengths, tmp_path / "g", capacity=256)
    whole = shards_per_pack(open_index(tmp_path / "g"))
    assert ours.max() <= 4 and ours.mean() < whole.mean() / 1.2


def shards_per_pack(index: Index) -> np.ndarray:
    held = index.samples(["pack_id", "shard"]).group_by("pack_id")
    return held.aggregate([("shard", "count_distinct")])["shard_count_distinct"].to_numpy()


def test_windows_for_memory_are_whole_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = lengths_of(tmp_path, 5)
    for fitting, rows in ((100, [80, 80, 40]), (10, [40] * 5)):
        monkeypatch.setattr("packidx.plan.job._rows_in_memory", lambda *_, n=fitting: n)
        plan_packs(lengths, tmp_path / "i", capacity=256)
        windows = open_index(tmp_path / "i").manifest["windows"]
        assert [one["num_rows"] for one in windows] == rows
