"""Plans as users make them, bad tables included: whole commands over Parquet, checked on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import file_of
from packidx_cli.main import main

import packidx.index.writer
from packidx import open_index, plan_packs
from packidx.errors import MismatchError, OptionError, PackidxError, SourceError
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
from packidx.torch import PackSampler


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


def test_a_table_may_be_in_parts_of_other_types_and_columns(tmp_path: Path) -> None:
    """Also where the names of its files are patterns, which others would match."""
    folder = tmp_path / "source=disk" / "len[1]*"
    folder.mkdir(parents=True)
    (folder.parent / "len1x").mkdir()
    bare(folder.parent / "len1x" / "part-0x.parquet", [7])
    bare(folder / "part-0?.parquet", [5, 6], source=pa.array(["a", "b"]).dictionary_encode())
    small = pa.table({"source": ["b"], "label_tokens": pa.nulls(1), "length": pa.array([9], "u2")})
    pq.write_table(small, folder / "part-1?.parquet")
    bare(folder / "part-2?.parquet", [4, None], label_tokens=[3, 1], other=[b"x", b"y"])
    plan_packs(folder, tmp_path / "i", capacity=100, margin=0, mix=("a=1", "b=2"))
    rows = open_index(tmp_path / "i").samples(["source", "length"]).to_pylist()
    found = sorted((row["length"], row["source"]) for row in rows)
    assert found == [(4, None), (5, "a"), (6, "b"), (6, "b"), (9, "b"), (9, "b")]


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


BIG = (1 << 31) - 1


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "rules", "says"),
    [
        ({"length": pa.array([], pa.int32())}, {}, "holds no usable sample"),
        ({"length": [5], "num_images": [-1]}, {}, "num_images` holds -1, not 0 to"),
        ({"length": [5], "num_images": [-1]}, {"max_images": 4}, "num_images` holds -1, not 0 to"),
        ({"length": [5], "label_tokens": [-3]}, {}, "label_tokens` holds -3"),
        ({"length": [5, 6], "label_tokens": [5, 7]}, {}, "sample 1 has 7 label_tokens of 6 tokens"),
        ({"length": [5], "vision_cost": [1 << 62]}, {}, "vision_cost` holds 4611686018427387904"),
        ({"length": [5] * 3, "num_images": [BIG] * 3}, {}, "num_images` of one pack add up to"),
        ({"length": pa.array([10, 2**31 + 5])}, {}, "length` holds 2147483653"),
        ({"length": pa.array([2**63 + 1], pa.uint64())}, {}, "` holds 9223372036854775809"),
        ({"length": [1], "image_tokens": pa.array([2**40])}, {}, "image_tokens` holds"),
        ({"length": [1], "key": pa.array([b"\xff"])}, {}, "key` is Binary, not text"),
        ({"length": [1], "media": [[3]]}, {}, "media` is List"),
        ({"length": [1], "source": [1]}, {}, "column `source` is Int64, not text"),
        ({"length": [1.5]}, {}, "length` is Float64, not integer"),
        ({"tokens": [1]}, {}, "no column `length`"),
        ({"length": [1, 2], "sample_id": [3, 3]}, {}, "more than once"),
        ({"length": [5]}, {"group_by": "source"}, "needs the column `source`"),
        ({"length": [5]}, {"group_by": "media_type"}, "needs the column `num_images`"),
        ({"length": [5]}, {"max_images": 3}, "needs the column `num_images`"),
        ({"length": [5]}, {"max_vision_patches": 3}, "needs the column `vision_patches`"),
        ({"length": [5]}, {"mix": ("a=1",)}, "source"),
    ],
)
def test_tables_that_no_plan_can_be_made_of(
    tmp_path: Path, columns: dict[str, Any], rules: dict[str, Any], says: str
) -> None:
    with pytest.raises(PackidxError, match=says) as caught:
        plan_packs(table(tmp_path / "l.parquet", **columns), tmp_path / "i", capacity=64, **rules)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "i" / "HEAD").exists()


def test_a_state_that_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_packs(table(tmp_path / "l.parquet", length=[5, 6]), tmp_path / "i", capacity=512)
    (tmp_path / "state.json").write_text("[" * 100_000)
    command = ["plan", "--continue", str(tmp_path / "state.json"), "-o", str(tmp_path / "i")]
    assert main(command) == 1
    assert "is not JSON" in capsys.readouterr().err


def test_an_exclusion_that_excludes_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = table(tmp_path / "l.parquet", length=[5, 6], key=["a", "b"])
    command = ["plan", str(lengths), "-o", str(tmp_path / "i"), "--capacity", "64", "--quiet"]
    for column, note in ((["c"], True), (["b"], False)):
        table(tmp_path / "x.parquet", key=column)
        assert main([*command, "--exclude", str(tmp_path / "x.parquet")]) == 0
        assert ("none of the samples" in capsys.readouterr().err) == note
    for column in ([1, 2], [["a"]]):
        table(tmp_path / "x.parquet", key=column)
        assert main([*command, "--exclude", str(tmp_path / "x.parquet")]) == 1
        assert "not text: cast it first" in capsys.readouterr().err


def write(path: Path, n: int = 4000) -> Path:
    rng = np.random.default_rng(n)
    table = pa.table(
        {
            "length": rng.integers(5, 300, n),
            "source": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
            "key": [f"k{i}" for i in range(n)],
        }
    )
    pq.write_table(table, path)
    return path


def test_the_command_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = write(tmp_path / "l.parquet")
    index = str(tmp_path / "i")
    assert main(["plan", str(lengths), "-o", index, "--capacity", "512", "--mix", "c=2"]) == 0
    first = open_index(index)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(PackSampler(first, global_batch=8).state_at(5)))
    command = ["plan", "--continue", str(state), "-o", index]
    assert main([*command, "--capacity", "1024"]) == 0
    second = open_index(index)
    options = second.manifest["options"]
    assert (options["capacity"], options["weights"]) == (1024, {"c": "2"})
    assert options["continues"]["snapshot_id"] == first.id
    assert second.manifest["parent"] == first.id
    capsys.readouterr()
    assert main(["plan", "--continue", str(state)]) == 2
    assert "--output" in capsys.readouterr().err


def test_what_cannot_be_continued_says_so(tmp_path: Path) -> None:
    lengths = write(tmp_path / "l.parquet", 500)
    plan_packs(lengths, tmp_path / "i", capacity=512)
    index = open_index(tmp_path / "i")
    state = PackSampler(index, global_batch=4).state_at(2)
    plan_packs(lengths, tmp_path / "i", capacity=512, seed=1)
    other = open_index(tmp_path / "i")
    with pytest.raises(MismatchError, match="snapshot"):
        plan_packs(lengths, tmp_path / "i", resume=(other, state))
    with pytest.raises(MismatchError, match="fingerprint"):
        plan_packs(write(tmp_path / "m.parquet", 501), tmp_path / "i", resume=(index, state))
