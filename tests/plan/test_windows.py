"""Windows: runs of shards that are planned as one, appended to, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx import estimate_lengths, open_index, plan_packs
from packidx.index import Index


def write_shards(folder: Path, numbers: range, rows: int = 40) -> None:
    """JSONL files of tokenized records, every file with lengths of its own."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        rng = np.random.default_rng(number)
        lines = [
            json.dumps({"id": f"{number}-{row}", "input_ids": [7] * int(length)})
            for row, length in enumerate(rng.integers(5, 120, rows))
        ]
        (folder / f"shard-{number:03d}.jsonl").write_text("\n".join(lines) + "\n")


def lengths_of(folder: Path, shards: int, rows: int = 40) -> Path:
    write_shards(folder / "data", range(shards), rows)
    estimate_lengths([f"all={folder}/data"], folder / f"lengths-{shards}", workers=1)
    return folder / f"lengths-{shards}"


def table(index: Index, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = getattr(index, name)().to_pylist()
    return rows


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
        monkeypatch.setattr("packidx.plan.windows._fitting", lambda *_, n=fitting: n)
        plan_packs(lengths, tmp_path / "i", capacity=256)
        windows = open_index(tmp_path / "i").manifest["windows"]
        assert [one["num_rows"] for one in windows] == rows


def test_the_memory_limit_makes_windows_and_nothing_else(tmp_path: Path) -> None:
    n = 200_000
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"length": rng.integers(5, 500, n)}), tmp_path / "l.parquet")
    small = plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=2048, window="1MB")
    assert len(small.manifest["windows"]) == 4  # of 65,536 samples, the fewest there are
    plain = plan_packs(tmp_path / "l.parquet", tmp_path / "j", capacity=2048)
    large = plan_packs(tmp_path / "l.parquet", tmp_path / "j", capacity=2048, window="9TiB")
    assert plain.snapshot_id == large.snapshot_id != small.snapshot_id


def test_a_window_without_packs_does_not_decide_the_schedule(tmp_path: Path) -> None:
    lengths = [9000] * 100 + [100] * 2000
    pq.write_table(pa.table({"length": lengths}), tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=1000, window=100)
    index = open_index(tmp_path / "i")
    result = index.manifest["result"]
    assert index.snapshot.windows[0].num_packs == 0 and result["dropped"] == {"too_long": 100}
    assert result["schedule_block"] == 16  # an eighth of 200 packs, as a power of two
