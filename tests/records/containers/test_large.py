"""Records too large to be held, and files of blank lines: rejected or passed over, cheaply."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_files import zstd

from packidx import estimate_lengths
from packidx.errors import BadRecord, SourceError
from packidx.records.containers.base import BOM, Container, TooLarge, size_of
from packidx.records.containers.convert import Converted
from packidx.records.containers.lines import Lines, filled_lines

LIMIT = 3 << 20
RECORDS = [b'{"id": "a"}', b'{"id": "' + b"x" * LIMIT + b'"}', b'{"id": "b"}', b" " * LIMIT + b"5"]


def packed(data: bytes, codec: str) -> bytes:
    return gzip.compress(data, 1) if codec == "gz" else zstd(data)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "json", "json.gz"])
def test_a_record_over_the_limit_is_rejected_alone(tmp_path: Path, kind: str) -> None:
    text, _, codec = kind.partition(".")
    is_array = text == "json"
    data = b"[" + b",".join(RECORDS) + b"]" if is_array else b"\n".join(RECORDS)
    path = str(tmp_path / f"x.{kind}")
    Path(path).write_bytes(packed(data, codec) if codec else data)
    container: Container = Lines(LIMIT)
    if kind != "jsonl":
        container = Converted(kind, max_record=LIMIT)
    found = container.scan(path, 1 << 20)
    assert found.num_records == 4
    rows = [raw for part in found.ranges for raw in container.read(path, part)]
    assert [raw.row for raw in rows] == [0, 1, 2, 3]
    good, large, next_one, padded = (raw.record for raw in rows)
    assert (good, next_one) == ({"id": "a"}, {"id": "b"})
    for error in (large, padded):
        assert isinstance(error, BadRecord)
        assert error.reason == "record_too_large"
        assert "bytes, over 3 MiB" in error.detail
    if kind == "jsonl":
        assert rows[1].offset == data.index(b'{"id": "x')
        assert rows[1].nbytes in (len(RECORDS[1]), len(RECORDS[1]) + 1)  # with its newline
    else:
        assert container.read_row(path, 2) == {"id": "b"}
        with pytest.raises(BadRecord, match="record_too_large"):
            container.read_row(path, 1)


def test_a_row_over_the_limit_ends_a_tables_scan(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\n1,2\n" + b"x" * LIMIT + b",\n3,4\n")
    with pytest.raises(SourceError, match=r"x\.csv: the row at byte 8 takes 3,145,730 bytes"):
        Converted("csv", max_record=LIMIT).scan(str(path))


LINES = st.lists(st.sampled_from([b"", b" ", b"\t\r", b"\r", b"{}", b"[1, 2]", b" a ", b"x" * 40]))


@given(LINES, st.integers(1, 50), st.booleans(), st.sampled_from([30, 1000]))
def test_lines_are_those_of_the_file_however_it_is_cut(
    lines: list[bytes], size: int, marked: bool, limit: int
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
    found = list(filled_lines(iter(blocks), 0, False, limit))
    assert [offset for offset, _ in found] == [offset for offset, _ in expected]
    for (_, line), (_, raw) in zip(expected, found, strict=True):
        if isinstance(raw, TooLarge):
            assert len(line) + 1 > limit
            assert size_of(raw) - len(line) in (0, 1)
        else:
            assert raw == line


def test_blank_lines_in_a_cell_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n\n\n \n1,"\n\n \n\n"\n\n\n2,3\n' + b"\n" * 3000)
    container = Converted("csv")
    found = container.scan(str(path))
    rows = [raw.record for part in found.ranges for raw in container.read(str(path), part)]
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
