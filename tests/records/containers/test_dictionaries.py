"""Tables of a few kB in which many rows name one long value are read within a bound of memory."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packidx.errors import SourceError
from packidx.records.shards import read_records, scan

LONG = "word " * 1_000_000
ROWS = 300  # 1.5 GB, if all of them are held at once
READ = """
import resource, sys
from packidx.records.shards import read_records, scan
path, kind = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(1 for part in scan(path, kind).ranges for _ in read_records(path, part, kind))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def named(number: int, value: Any = LONG, first: int | None = 0) -> pa.Array:
    """An array of `number` values that are all the same one."""
    indices = pa.array([first, *([0] * (number - 1))], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([value]))


def listed(values: pa.Array, each: int) -> pa.Array:
    """A list array of `each` values in a row."""
    return pa.ListArray.from_arrays(pa.array(range(0, len(values) + 1, each), pa.int32()), values)


def talks() -> pa.Array:
    names = ["role", "content"]
    return listed(pa.StructArray.from_arrays([named(2 * ROWS, "user"), named(2 * ROWS)], names), 2)


def viewed() -> pa.Array:
    view = struct.pack("<i4sii", len(LONG), LONG[:4].encode(), 0, 0)
    buffers = [None, pa.py_buffer(view * ROWS), pa.py_buffer(LONG.encode())]
    return pa.Array.from_buffers(pa.string_view(), ROWS, buffers)


TABLES: dict[str, Callable[[], dict[str, pa.Array]]] = {
    "a text": lambda: {"text": named(ROWS)},
    "a text, and the first row has none": lambda: {"text": named(ROWS, first=None)},
    "bytes": lambda: {"jpg": named(ROWS, LONG.encode())},
    "messages": lambda: {"messages": talks()},
    "lists of texts": lambda: {"texts": listed(named(3 * ROWS), 3)},
    "two texts": lambda: {"question": named(ROWS), "answer": named(ROWS)},
}


def read(path: Path, kind: str) -> tuple[int, int]:
    """Rows of a file, and MB of memory by which a process grows that reads them."""
    command = [sys.executable, "-c", READ, str(path), kind]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    rows, grown = map(int, told.split())
    return rows, grown >> 10


@pytest.mark.parametrize("name", TABLES)
def test_one_value_that_many_rows_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table(TABLES[name]())
    pq.write_table(table, path, compression="zstd", store_schema="texts" in table.column_names)
    assert path.stat().st_size < 5_000
    rows, grown = read(path, "parquet")
    assert rows == ROWS and grown < 400


def test_views_of_one_value_in_an_arrow_file(tmp_path: Path) -> None:
    table = pa.table({"text": viewed()})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    assert (tmp_path / "x.arrow").stat().st_size < 30_000_000
    rows, grown = read(tmp_path / "x.arrow", "arrow")
    assert rows == ROWS and grown < 400


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("parquet", lambda: named(ROWS, LONG * 60)),
        ("parquet", lambda: listed(named(60 * ROWS), 60)),
        ("arrow", lambda: listed(named(ROWS), 2)),
        ("arrow", lambda: pa.StructArray.from_arrays([named(ROWS)], ["content"])),
        ("arrow", lambda: pa.RunEndEncodedArray.from_arrays([ROWS], [LONG])),
    ],
)
def test_rows_that_may_be_too_large_are_refused(
    tmp_path: Path, kind: str, values: Callable[[], pa.Array]
) -> None:
    path, table = tmp_path / "x", pa.table({"text": values()})
    if kind == "parquet":
        pq.write_table(table, path, compression="zstd", write_statistics=False)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(SourceError, match="column 'text"):
        for part in scan(str(path), kind).ranges:
            next(iter(read_records(str(path), part, kind)))
