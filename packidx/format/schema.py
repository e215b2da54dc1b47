"""Columns of every table packidx writes: the one place where they are defined (see FORMAT.md)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

LENGTHS_FORMAT = "packidx-lengths"
INDEX_FORMAT = "packidx-index"
FORMAT_VERSION = 2

MEDIA = pa.list_(
    pa.struct(
        [
            pa.field("kind", pa.string()),
            pa.field("tokens", pa.int32()),
            pa.field("patches", pa.int64()),
            pa.field("t", pa.int32()),
            pa.field("h", pa.int32()),
            pa.field("w", pa.int32()),
            pa.field("at", pa.int32()),
        ]
    )
)

# What a reader needs of a piece's media: `at` counts from the piece's first token.
PIECE_MEDIA = pa.list_(
    pa.struct([field for field in MEDIA.value_type if field.name not in ("tokens", "patches")])
)

LOCATOR = [
    pa.field("source", pa.string()),
    pa.field("key", pa.string()),
    pa.field("shard", pa.int32()),
    pa.field("row", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("nbytes", pa.int64()),
]

LENGTHS = pa.schema(
    [
        pa.field("sample_id", pa.int64()),
        *LOCATOR,
        pa.field("text_tokens", pa.int32()),
        pa.field("image_tokens", pa.int32()),
        pa.field("video_tokens", pa.int32()),
        pa.field("audio_tokens", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("label_tokens", pa.int32()),
        pa.field("num_turns", pa.int32()),
        pa.field("num_images", pa.int32()),
        pa.field("num_videos", pa.int32()),
        pa.field("vision_patches", pa.int64()),
        pa.field("vision_cost", pa.int64()),
        pa.field("media", MEDIA),
        pa.field("method", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
    ]
)

PACKS = pa.schema(
    [
        pa.field("pack_id", pa.int64()),
        pa.field("epoch", pa.int32()),
        pa.field("group", pa.string()),
        pa.field("window", pa.int32()),
        pa.field("num_samples", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("padded_length", pa.int32()),
        pa.field("label_tokens", pa.int32()),
        pa.field("image_tokens", pa.int32()),
        pa.field("video_tokens", pa.int32()),
        pa.field("audio_tokens", pa.int32()),
        pa.field("num_images", pa.int32()),
        pa.field("num_videos", pa.int32()),
        pa.field("vision_patches", pa.int64()),
        pa.field("vision_cost", pa.int64()),
        pa.field("attention_cost", pa.int64()),
        pa.field("first_row", pa.int64()),
    ]
)

SAMPLES = pa.schema(
    [
        pa.field("pack_id", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("sample_id", pa.int64()),
        pa.field("copy", pa.int32()),
        pa.field("piece", pa.int32()),
        pa.field("token_start", pa.int32()),
        pa.field("start", pa.int32()),
        pa.field("length", pa.int32()),
        pa.field("padded_length", pa.int32()),
        pa.field("label_tokens", pa.int32()),
        *LOCATOR,
        pa.field("media", PIECE_MEDIA),
    ]
)
# Of lengths that say nothing of media: the column is left out, and read as null.
SAMPLES_WITHOUT_MEDIA = pa.schema([field for field in SAMPLES if field.name != "media"])

DROPPED = pa.schema(
    [
        pa.field("sample_id", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("key", pa.string()),
        pa.field("length", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
    ]
)


def open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer whose bytes depend on the rows alone.

    Compression, encodings and page size are pinned: they are part of the format. Integers are
    delta-encoded (ids and offsets are nearly sequential), strings that repeat use a dictionary.
    Packs, which are numbers alone, take LZ4: zstd gains a tenth, and takes longer to set up for
    each column of a row group than to compress it.
    """
    codec: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
    if schema.equals(PACKS):
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
    )


def as_arrow(values: NDArray[np.integer]) -> pa.Array:
    """Integers as Arrow has them, not copied nor looked through for nulls, as `pa.array` does."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`, absent ones null.

    Raises:
        pa.ArrowInvalid: a value does not fit the column's type.
    """
    columns: list[Any] = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(_nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


_NULLS = 1 << 17


@cache
def _null_block(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS, kind)


def _nulls(count: int, kind: pa.DataType) -> pa.ChunkedArray:
    """`count` nulls, all in the memory of the same few."""
    block = _null_block(kind)
    chunks = [block] * (count // _NULLS)
    return pa.chunked_array([*chunks, block.slice(0, count % _NULLS)], kind)
