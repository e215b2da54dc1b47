"""A path is the file or folder of that very name, whatever marks are in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packidx_cli.main import main

NAMES = ("a*b", "d[1]", "q?", "{x,y}", "it's", "%41", "back\\slash", "~", "length=3", "c#d", "ü")


def lengths(path: Path, values: list[int]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        pq.write_table(pa.table({"length": values}), file)
    return str(path)


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, int]]:
    capsys.readouterr()
    status = main(["sql", *args, "--format", "json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    found: list[dict[str, int]] = json.loads(out)
    return found


def summed(capsys: pytest.CaptureFixture[str], index: str, view: str = "lengths") -> list[int]:
    query = f"SELECT count(*) AS n, sum(length)::BIGINT AS tokens FROM {view}"
    return [value for row in rows(capsys, index, query) for value in row.values()]


def plan(path: str, index: Path) -> str:
    assert main(["plan", path, "-o", str(index), "--capacity", "16"]) == 0
    return str(index)


@pytest.mark.parametrize("name", NAMES)
def test_an_index_is_read_from_a_folder_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named in full, and from where it lies."""
    monkeypatch.chdir(tmp_path)
    index = plan(lengths(Path(name, "l.parquet"), [5, 6, 7, 8]), Path(name, "i"))
    assert summed(capsys, index) == [4, 26]
    assert summed(capsys, str(tmp_path / index), "samples") == [4, 26]


def test_a_pattern_that_was_planned_stays_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths(tmp_path / "d[1]" / "a.parquet", [5, 6])
    lengths(tmp_path / "d[1]" / "b.parquet", [7])
    lengths(tmp_path / "d1" / "c.parquet", [8])
    index = plan(f"{tmp_path}/d[1]/*.parquet", tmp_path / "i")
    assert summed(capsys, index) == [3, 18]
    assert summed(capsys, index, "samples") == [3, 18]
    shutil.rmtree(tmp_path / "d[1]")
    assert summed(capsys, index) == [1, 8]  # the pattern's own meaning, where nothing has its name
