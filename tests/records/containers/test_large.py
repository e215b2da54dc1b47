"""Cells without an end, blank lines, and files of the shortest records."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from packidx import estimate_lengths
from packidx.errors import SourceError
from packidx.records.containers.lines import Converted
from packidx.records.containers.registry import get_container


def test_a_quote_that_is_not_closed_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = csv.field_size_limit(1000)
    try:
        (tmp_path / "x.csv").write_bytes(b'a,b\n1,"' + b"x\n" * 5000)
        with pytest.raises(SourceError, match=r"x\.csv: a quote in the last lines up to line 50"):
            get_container("csv").scan(str(tmp_path / "x.csv"))
    finally:
        csv.field_size_limit(limit)


def test_blank_lines_in_a_cell_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n\n\n \n1,"\n\n \n\n"\n\n\n2,3\n' + b"\n" * 3000)
    container = Converted("csv")
    found = container.scan(str(path))
    rows = [raw.data for part in found.ranges for raw in container.read(str(path), part)]
    assert rows == [{"a": "1", "b": "\n\n \n\n"}, {"a": "2", "b": "3"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_a_task_counts_no_more_lines_than_fit_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each of the shortest is a row, of which a worker holds 500 bytes until its part is done."""
    monkeypatch.setattr("packidx.records.containers.base.TASK_RECORDS", 1000)
    monkeypatch.setattr("packidx.estimate.tasks.TASK_RECORDS", 1000)
    (tmp_path / name).write_bytes(b"x\n" * 10_501)
    estimate_lengths(str(tmp_path / name), tmp_path / "l", workers=1)
    parts = [pq.read_metadata(part).num_rows for part in sorted((tmp_path / "l").glob("part-*"))]
    assert sum(parts) >= 10_500 and max(parts) <= 1500
