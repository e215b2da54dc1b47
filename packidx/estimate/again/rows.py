"""Rows of an earlier table with the numbers and names that they have in the next one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.estimate.examine import ShardContext, name_in_shard, raw_records
from packidx.format import schema
from packidx.format.parquet import as_arrow, conform
from packidx.io.copies import StoredFile, local_copy
from packidx.records.containers.base import RecordRange
from packidx.records.media.looked_at import References


class Span(NamedTuple):
    """Neighbouring rows of a part of the earlier table."""

    file: StoredFile
    first: int
    num_rows: int


class OldRows(NamedTuple):
    """The rows of one range of a shard, in an earlier table."""

    spans: tuple[Span, ...]
    old_name: str | None
    """What its keys of records without a name of their own began with, where that is another name
    now."""
    place: tuple[int, int, str]
    """sample_id of the first row, number of the shard and name of its source, as they stand in the
    earlier table."""
    references: References
    columns: Mapping[str, str]
    """Of the shard, and what each is used as."""


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """All of a part, which has the content that its manifest states.

    Raises:
        FormatError: it has another one, or none.
        OSError: it cannot be read.
    """
    with local_copy(file) as copy, pq.ParquetFile(copy) as stored:
        return conform(stored.read(use_threads=False), schema.ALL_LENGTHS)


def taken_rows(
    old: OldRows, shard: ShardContext, record_range: RecordRange, first_id: int
) -> pa.Table:
    """The rows of a range as a count of it would make them.

    Args:
        first_id: sample_id of the first one.

    Raises:
        FormatError: a part of the earlier table is damaged.
        SourceError: the shard cannot be read.
    """
    tables = [read_part(span.file).slice(span.first, span.num_rows) for span in old.spans]
    rows = pa.concat_tables(tables)
    if old.old_name is None and old.place == (first_id, shard.number, shard.source):
        return rows
    num = rows.num_rows
    columns = {
        "sample_id": as_arrow(np.arange(first_id, first_id + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.source, pa.string()), num),
    }
    if old.old_name is not None:
        columns["key"] = _renamed(rows.column("key"), old.old_name, shard, record_range)
    for name, values in columns.items():
        rows = rows.set_column(
            rows.schema.get_field_index(name), schema.ALL_LENGTHS.field(name), values
        )
    return rows


def _renamed(
    keys: pa.ChunkedArray, old_name: str, shard: ShardContext, record_range: RecordRange
) -> pa.ChunkedArray | pa.Array:
    """Keys of records without a name of their own, which begin with the shard's.

    A record may be called so itself: then the records are asked.
    """
    if not pc.any(pc.starts_with(keys, f"{old_name}#")).as_py():
        return keys
    own = [(raw.row, name_in_shard(raw)) for raw in raw_records(shard, record_range)]
    names = [f"{shard.name}#{row}" if name is None else name for row, name in own]
    return pa.array(names, pa.string())
