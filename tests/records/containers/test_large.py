"""Records too large to be held, and files of blank lines: rejected or passed over, cheaply."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_files import zstd

from packidx import estimate_lengths
from packidx.errors import SourceError
from packidx.records.containers.base import BOM
from packidx.records.containers.convert import Converted
from packidx.records.containers.lines import filled_lines
from packidx.records.containers.registry import container

LIMIT = 2 << 20
RECORDS = [b'{"id": "a"}', b'{"id": "' + b"x" * 3 * LIMIT + b'"}', b'{"id": "b"}']


def packed(data: bytes, codec: str) -> bytes:
    return gzip.compress(data, 1) if codec == "gz" else zstd(data)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "json", "json.gz", "csv"])
def test_a_record_over_the_limit_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in ("lines", "convert"):
        monkeypatch.setattr(f"packidx.records.containers.{module}.MAX_RECORD", LIMIT)
    text, _, codec = kind.partition(".")
    data = b"[" + b",".join(RECORDS) + b"]" if text == "json" else b"\n".join(RECORDS)
    path = str(tmp_path / f"x.{kind}")
    Path(path).write_bytes(packed(data, codec) if codec else data)
    with pytest.raises(SourceError, match=r"(line at byte 12|element 1) has over 2.*write its med"):
        container(kind).scan(path)


def test_a_quote_that_is_not_closed_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = csv.field_size_limit(1000)
    try:
        (tmp_path / "x.csv").write_bytes(b'a,b\n1,"' + b"x\n" * 5000)
        with pytest.raises(SourceError, match=r"x\.csv: a quote in the last lines up to line 50"):
            container("csv").scan(str(tmp_path / "x.csv"))
    finally:
        csv.field_size_limit(limit)


LINES = st.lists(st.sampled_from([b"", b" ", b"\t\r", b"\r", b"{}", b"[1, 2]", b" a ", b"x" * 40]))


@given(LINES, st.integers(1, 50), st.booleans())
def test_lines_are_those_of_the_file_however_it_is_cut(
    lines: list[bytes], size: int, marked: bool
) -> None:
    data = b"\n".join(lines)
    expected, at = [], len(BOM) if marked else 0
    for line in lines:
        if line.strip():
            expected.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    whole = (BOM if marked else b"") + data
    first = max(size, len(BOM))
    blocks = [whole[:first], *(whole[n : n + size] for n in range(first, len(whole), size))]
    assert list(filled_lines(iter(blocks))) == expected


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
    for module in ("lines", "convert"):
        monkeypatch.setattr(f"packidx.records.containers.{module}.TASK_RECORDS", 1000)
    monkeypatch.setattr("packidx.estimate.tasks.TASK_RECORDS", 1000)
    (tmp_path / name).write_bytes(b"x\n" * 10_501)
    estimate_lengths(str(tmp_path / name), tmp_path / "l", workers=1)
    parts = [pq.read_metadata(part).num_rows for part in sorted((tmp_path / "l").glob("part-*"))]
    assert sum(parts) >= 10_500 and max(parts) <= 1500
