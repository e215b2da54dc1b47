"""Plans as users make them: whole commands over Parquet, checked on what lies on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import file_of

import packidx.index.writer
from packidx import open_index, plan_packs
from packidx.errors import OptionError, SourceError
from packidx.format.parquet import conform_table
from packidx.format.schema import (
    DROPPED,
    LENGTHS,
    SAMPLES_OPTIONAL,
    STORED_PACKS,
    STORED_SAMPLES,
)
from packidx.index import window_files
from packidx.io import storage


def bare(path: Path, lengths: Any, **columns: Any) -> Path:
    pq.write_table(pa.table({"length": pa.array(lengths, pa.int64()), **columns}), path)
    return path


def parquet_bytes(index: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(index.glob("windows/*/*.parquet"))}


def test_schemas_on_disk_are_the_documented_ones(tmp_path: Path) -> None:
    plan_packs(bare(tmp_path / "l.parquet", [5, 6, 700]), tmp_path / "i", capacity=10)
    index = open_index(tmp_path / "i")
    without = pa.schema(field for field in STORED_SAMPLES if field.name not in SAMPLES_OPTIONAL)
    bare_ones = {"packs": STORED_PACKS, "samples": without, "dropped": DROPPED}
    for name, schema in bare_ones.items():
        assert pq.read_schema(file_of(index, name)).equals(schema)


def test_head_parent_and_existing_snapshots(tmp_path: Path) -> None:
    lengths = bare(tmp_path / "l.parquet", range(16, 516))
    first = plan_packs(lengths, tmp_path / "i", capacity=8192)
    second = plan_packs(lengths, tmp_path / "i", capacity=8192, seed=1)
    assert (first.existed, second.existed) == (False, False)
    assert first.snapshot_id != second.snapshot_id
    assert second.manifest["parent"] == first.snapshot_id
    assert open_index(tmp_path / "i").id == second.snapshot_id
    before = parquet_bytes(tmp_path / "i")
    again = plan_packs(lengths, tmp_path / "i", capacity=8192)
    assert again.existed and again.snapshot_id == first.snapshot_id
    assert open_index(tmp_path / "i").id == first.snapshot_id
    assert parquet_bytes(tmp_path / "i") == before


def test_options_are_part_of_the_id(tmp_path: Path) -> None:
    lengths = bare(tmp_path / "l.parquet", [5, 6])
    ids = {plan_packs(lengths, tmp_path / "i", capacity=c).snapshot_id for c in (12, 13, 13)}
    assert len(ids) == 2  # though both put the two samples into one pack


def test_seed_decides_who_meets_whom_and_the_order(tmp_path: Path) -> None:
    lengths = bare(tmp_path / "l.parquet", np.full(1000, 100))
    packs = []
    for seed in (0, 1):
        plan_packs(lengths, tmp_path / f"{seed}", capacity=1000, seed=seed)
        samples = open_index(tmp_path / f"{seed}").samples(["sample_id"])["sample_id"].to_numpy()
        packs.append({frozenset(part.tolist()) for part in samples.reshape(-1, 10)})
    assert len(packs[0] & packs[1]) == 0


def full_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A table with every column of the lengths schema."""
    base = {"source": "s", "status": "ok", "method": "exact", "num_images": 0, "num_videos": 0}
    full = [{"sample_id": i, "key": f"k{i}", **base, **row} for i, row in enumerate(rows)]
    names = sorted({name for row in full for name in row})
    columns = {n: pa.array([r.get(n) for r in full], LENGTHS.field(n).type) for n in names}
    pq.write_table(conform_table(pa.table(columns), LENGTHS), path)
    return path


def test_counters_are_summed_and_unknown_ones_stay_null(tmp_path: Path) -> None:
    known = {"label_tokens": 3, "image_tokens": 4, "vision_patches": 16, "vision_cost": 256}
    rows = [{"length": 6, **known}, {"length": 4, **known}, {"length": 9, "image_tokens": 1}]
    full_table(tmp_path / "l.parquet", rows)
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=10)
    packs = {row["length"]: row for row in open_index(tmp_path / "i").packs().to_pylist()}
    assert {k: packs[10][k] for k in known} == {k: 2 * v for k, v in known.items()}
    assert packs[10]["attention_cost"] == 36 + 16
    assert (packs[9]["label_tokens"], packs[9]["image_tokens"]) == (None, 1)


@pytest.mark.parametrize(
    ("method", "planned"), [("exact", 1000), ("precomputed", 980), ("heuristic", 900)]
)
def test_margin_follows_the_weakest_method(tmp_path: Path, method: str, planned: int) -> None:
    full_table(tmp_path / "l.parquet", [{"length": 3}, {"length": 4, "method": method}])
    summary = plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=1000)
    assert summary.manifest["options"]["planned_capacity"] == planned


def test_inputs_that_are_no_lengths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 not really")
    cases = {
        "nothing": "does not exist",
        "empty": "not a lengths table",
        "*.nope": "matches no file",
        "junk.parquet": "cannot be read",
    }
    for name, says in cases.items():
        with pytest.raises(SourceError, match=says):
            plan_packs(tmp_path / name, tmp_path / "i", capacity=10)


def test_lengths_that_are_none_are_dropped_as_such(tmp_path: Path) -> None:
    plan_packs(bare(tmp_path / "l.parquet", [5, None, -3, 0]), tmp_path / "i", capacity=10)
    found = [(d["reason"], d["detail"]) for d in open_index(tmp_path / "i").dropped().to_pylist()]
    assert found == [
        ("invalid_length", "length is null"),
        ("invalid_length", "length is -3"),
        ("empty", "no token is left to train on"),
    ]


def test_output_that_is_no_index_is_left_alone(tmp_path: Path) -> None:
    lengths = bare(tmp_path / "l.parquet", [5])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for output in ("mine", "l.parquet"):
        with pytest.raises(OptionError):
            plan_packs(lengths, tmp_path / output, capacity=10)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


class Crash(BaseException):
    """Stands for the power cut: no handler of ours may catch it."""


CALLS = {"open_writer": 2, "fsync_path": 4, "write": 2}


@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, calls in CALLS.items() for call in range(calls)]
)
def test_a_crash_at_any_instant_leaves_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    lengths = bare(tmp_path / "l.parquet", [5, 6, 7])
    old = plan_packs(lengths, tmp_path / "i", capacity=10).snapshot_id
    calls = 0
    modules = [m for m in (packidx.index.writer, window_files, storage) if hasattr(m, name)]
    real = getattr(modules[0], name)

    def crashing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            raise Crash
        return real(*args, **kwargs)

    for module in modules:
        monkeypatch.setattr(module, name, crashing)
    with pytest.raises(Crash):
        plan_packs(lengths, tmp_path / "i", capacity=20)
    monkeypatch.undo()
    assert open_index(tmp_path / "i").id == old
    new = plan_packs(lengths, tmp_path / "i", capacity=20)
    assert open_index(tmp_path / "i").id == new.snapshot_id
    assert [p.name for p in (tmp_path / "i" / "windows").glob(".tmp*")] == []
