"""Parquet: the writer whose bytes depend on rows alone, and SQL that reads Parquet files."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packidx.format.schema import STORED_PACKS

# What makes DuckDB take a path for a pattern; between brackets it stands for itself.
_MARK = re.compile(r"[\[*?]")

_NULLS = 1 << 17


def scan_of(files: Iterable[str | Path], may_differ: bool = False) -> str:
    """A table function over `files`, to stand behind ``FROM``.

    Args:
        may_differ: a file may lack a column that another has; it then reads as null.

    A file is the one of that very name, and its columns are those in it: no mark in a path makes a
    pattern, no ``~`` a home folder, and no folder named ``a=1`` a column.
    """
    listed = ", ".join(quote_literal(pattern_of(file)) for file in files)
    by_name = ", union_by_name = true" if may_differ else ""
    return f"read_parquet([{listed}], hive_partitioning = false{by_name})"


def pattern_of(file: str | Path) -> str:
    """The pattern that `file` alone matches."""
    return _MARK.sub(r"[\g<0>]", os.path.abspath(file))


def quote_literal(text: str) -> str:
    """`text` as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer whose bytes depend on the rows alone.

    Compression, encodings and page size are pinned: they are part of the format. Integers are
    delta-encoded (ids and offsets are nearly sequential), strings that repeat use a dictionary.
    Packs, which are numbers alone, take LZ4: zstd gains a tenth, and takes longer to set up for
    each column of a row group than to compress it.
    """
    codec: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
    if schema.equals(STORED_PACKS):
        codec = {"compression": "lz4"}
    flat = [field for field in schema if not pa.types.is_nested(field.type)]
    integers = [field.name for field in flat if pa.types.is_integer(field.type)]
    repeated = {"source", "group", "method", "status", "reason"}
    return pq.ParquetWriter(
        os.path.abspath(path),  # of which Arrow takes no part for a home folder or a URL
        schema,
        version="2.6",
        **codec,
        use_dictionary=[field.name for field in flat if field.name in repeated],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_statistics=True,
        store_schema=True,
        write_page_checksum=True,
    )


def footer_crc(file: pa.NativeFile) -> str:
    """Return the CRC-32 of a Parquet file's footer in hex; pages have checksums of their own."""
    size = file.size()
    length = int.from_bytes(file.read_at(4, max(0, size - 8)), "little") + 8
    start = max(0, size - length)
    return f"{zlib.crc32(file.read_at(size - start, start)):08x}"


def as_arrow(values: NDArray[np.integer]) -> pa.Array:
    """Integers as Arrow has them, not copied nor looked through for nulls, as `pa.array` does."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def conform_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`, absent ones null.

    Raises:
        pa.ArrowInvalid: a value does not fit the column's type.
    """
    columns: list[Any] = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(_make_nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


@cache
def _null_block(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS, kind)


def _make_nulls(count: int, kind: pa.DataType) -> pa.ChunkedArray:
    """`count` nulls, all in the memory of the same few."""
    block = _null_block(kind)
    chunks = [block] * (count // _NULLS)
    return pa.chunked_array([*chunks, block.slice(0, count % _NULLS)], kind)
