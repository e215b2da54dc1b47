"""Windows: runs of shards that are planned as one, appended to, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import OptionError
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


def test_appended_shards_leave_earlier_packs_as_they_are(tmp_path: Path) -> None:
    options = {"capacity": 256, "window": 4, "seed": 3}
    before = plan_packs(lengths_of(tmp_path, 10), tmp_path / "i", **options)
    old = open_index(tmp_path / "i")
    samples, packs = table(old, "samples"), table(old, "packs")
    after = plan_packs(lengths_of(tmp_path, 17), tmp_path / "i", append=old)
    new = open_index(tmp_path / "i")
    assert after.manifest["parent"] == before.snapshot_id == new.manifest["options"]["appends_to"]
    assert table(new, "packs")[: len(packs)] == packs
    assert table(new, "samples")[: len(samples)] == samples
    assert new.num_samples == 17 * 40
    rows = [one["num_rows"] for one in new.manifest["windows"]]
    assert rows == [160, 160, 80, 160, 120]  # the short one stays, shards 10 to 16 follow
    assert new.files()[0] == old.files()[0]  # nothing was copied
    again = plan_packs(tmp_path / "lengths-17", tmp_path / "i", append=old)
    assert again.existed and again.snapshot_id == after.snapshot_id


def test_whole_windows_are_the_same_whether_appended_or_planned_at_once(tmp_path: Path) -> None:
    options = {"capacity": 256, "window": 4}
    plan_packs(lengths_of(tmp_path, 8), tmp_path / "i", **options)
    plan_packs(lengths_of(tmp_path, 12), tmp_path / "i", append=open_index(tmp_path / "i"))
    plan_packs(tmp_path / "lengths-12", tmp_path / "j", **options)
    appended, at_once = open_index(tmp_path / "i"), open_index(tmp_path / "j")
    assert table(appended, "samples") == table(at_once, "samples")
    assert table(appended, "packs") == table(at_once, "packs")


def test_appending_what_does_not_follow_says_so(tmp_path: Path) -> None:
    plan_packs(lengths_of(tmp_path, 6), tmp_path / "i", capacity=256, window=3)
    index = open_index(tmp_path / "i")
    shorter = tmp_path / "shorter"
    write_shards(shorter, range(1, 9))
    estimate_lengths([f"all={shorter}"], tmp_path / "other", workers=1)
    with pytest.raises(OptionError, match="shard 0 .* new shards must follow"):
        plan_packs(tmp_path / "other", tmp_path / "i", append=index)
    longer = lengths_of(tmp_path, 7)
    with pytest.raises(OptionError, match="append: capacity is 300, in .* it is 256"):
        plan_packs(longer, tmp_path / "i", append=index, capacity=300)
    pq.write_table(pa.table({"length": [1, 2]}), tmp_path / "bare.parquet")
    plan_packs(tmp_path / "bare.parquet", tmp_path / "b", capacity=10)
    with pytest.raises(OptionError, match="does not say which shards"):
        plan_packs(tmp_path / "bare.parquet", tmp_path / "b", append=open_index(tmp_path / "b"))


def test_a_window_without_packs_does_not_decide_the_schedule(tmp_path: Path) -> None:
    lengths = [9000] * 100 + [100] * 2000
    pq.write_table(pa.table({"length": lengths}), tmp_path / "l.parquet")
    plan_packs(tmp_path / "l.parquet", tmp_path / "i", capacity=1000, window=100)
    index = open_index(tmp_path / "i")
    result = index.manifest["result"]
    assert index.snapshot.windows[0].num_packs == 0 and result["dropped"] == {"too_long": 100}
    assert result["schedule_block"] == 16  # an eighth of 200 packs, as a power of two


def test_the_command_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = str(tmp_path / "i")
    lengths = str(lengths_of(tmp_path, 4))
    assert main(["plan", lengths, "-o", index, "--capacity", "256", "--window", "2"]) == 0
    longer = str(lengths_of(tmp_path, 6))
    assert main(["plan", longer, "-o", index, "--append"]) == 0
    assert "windows      3" in capsys.readouterr().out
    assert shards_per_pack(open_index(index)).max() == 2
    assert main(["log", index]) == 0
    newer, older = capsys.readouterr().out.splitlines()[-2:]
    assert newer.endswith(f" --append to @{older.split()[0]}") and "--append" not in older


@pytest.mark.parametrize("added", ["nothing", "a shard without a record"])
def test_with_nothing_to_append_a_sentence_says_so_and_the_index_stays(
    added: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, lengths = str(tmp_path / "i"), str(lengths_of(tmp_path, 4))
    assert main(["plan", lengths, "-o", index, "--capacity", "256", "--window", "2"]) == 0
    if added != "nothing":
        lengths = str(tmp_path / "more")
        (tmp_path / "empty.jsonl").write_text("")
        sources = [f"all={tmp_path / 'data'}", f"all={tmp_path / 'empty.jsonl'}"]
        estimate_lengths(sources, lengths, workers=1)
    before = {path: path.stat().st_mtime_ns for path in sorted(Path(index).rglob("*"))}
    capsys.readouterr()
    assert main(["plan", lengths, "-o", index, "--append"]) == 1
    told = capsys.readouterr().err
    assert f"append: {lengths} has no sample after the 160 that" in told and told.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in sorted(Path(index).rglob("*"))} == before
