"""The same bytes for the same plan, in one window or several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_rules import broken_rules
from vlm_mix import write_mix

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import OptionError, SourceError
from packidx.index import Index

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
