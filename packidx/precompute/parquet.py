"""Parquet with two more columns: each slice's values are counted, then the file is written."""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import BadRecord
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import BATCH, ShardContext
from packidx.precompute.slices import ShardSlice, SliceTotals, counted
from packidx.precompute.values import LISTS, Values, names_of
from packidx.records.containers.base import broken
from packidx.records.containers.blocks import local_shard

_ERRORS = (pa.ArrowException, OSError)

_IMAGE = {"height": pa.int64(), "width": pa.int64(), "n_tokens": pa.int64()}
_VIDEO = {
    "num_frames": pa.int64(),
    "height": pa.int64(),
    "width": pa.int64(),
    "fps": pa.float64(),
    "duration": pa.float64(),
    "n_tokens": pa.int64(),
}
_AUDIO = {"num_samples": pa.int64(), "sampling_rate": pa.int64(), "n_tokens": pa.int64()}


def columns_of(form: str) -> tuple[pa.DataType, pa.DataType]:
    """The types of the two columns, in the order of `names_of`."""
    if form == LISTS:
        image, video, audio = pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.int64())
    else:
        image, video, audio = (pa.struct(names) for names in (_IMAGE, _VIDEO, _AUDIO))
    lists = {"images_meta": image, "videos_meta": video, "audios_meta": audio}
    return pa.int64(), pa.struct({name: pa.list_(entry) for name, entry in lists.items()})


def count_columns(shard_slice: ShardSlice, counter: RecordCounter, path: str) -> SliceTotals:
    """Write the two columns of a slice's rows to `path`, an Arrow stream; null where rejected.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    totals = SliceTotals()
    types = columns_of(shard_slice.form)
    schema = pa.schema(list(zip(("tokens", "meta"), types, strict=True)))
    values = (value for _, value in counted(shard_slice, counter))
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, schema) as out:
        while batch := list(itertools.islice(values, BATCH)):
            for value in batch:
                totals.add(value)
            out.write_batch(_batch(batch, schema))
    return totals


def _batch(values: Sequence[Values | BadRecord], schema: pa.Schema) -> pa.RecordBatch:
    tokens = [None if isinstance(value, BadRecord) else value.text_tokens for value in values]
    meta = [None if isinstance(value, BadRecord) else value.meta for value in values]
    arrays = [
        pa.array(column, field.type) for column, field in zip((tokens, meta), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_parquet(shard: ShardContext, paths: Sequence[str], output: str) -> None:
    """The shard with its two columns, row group by row group.

    Args:
        paths: what `count_columns` wrote of its slices, in order.

    Raises:
        SourceError: the shard is damaged.
    """
    names = names_of(shard)
    with ExitStack() as stack:
        copy = stack.enter_context(local_shard(shard.path))
        source = stack.enter_context(_opened(copy))
        columns = _Columns([stack.enter_context(pa.OSFile(path)) for path in paths])
        schema = _with(source.schema_arrow.empty_table(), names, columns.take(0)).schema
        codec = _codec(source.metadata)
        out = stack.enter_context(
            pq.ParquetWriter(os.path.abspath(output), schema, compression=codec)
        )
        for number in range(source.num_row_groups):
            table = _row_group(source, number, copy)
            table = _with(table, names, columns.take(table.num_rows))
            out.write_table(table, row_group_size=max(1, table.num_rows))


def _opened(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(os.path.abspath(path), pre_buffer=False)
    except _ERRORS as error:
        raise broken(path, "no Parquet file that can be read", error) from None


def _row_group(source: pq.ParquetFile, number: int, path: str) -> pa.Table:
    try:
        return source.read_row_group(number, use_threads=False)
    except _ERRORS as error:
        raise broken(path, "a Parquet file that is damaged", error) from None


def _with(table: pa.Table, names: Sequence[str], columns: Sequence[Any]) -> pa.Table:
    for name, column in zip(names, columns, strict=True):
        at = table.schema.get_field_index(name)
        put = table.append_column if at < 0 else functools.partial(table.set_column, at)
        table = put(name, column)
    return table


def _codec(metadata: pq.FileMetaData) -> str:
    """The compression that most of the file's columns have."""
    if not metadata.num_row_groups or not metadata.num_columns:
        return "snappy"
    group = metadata.row_group(0)
    codecs = [group.column(number).compression for number in range(group.num_columns)]
    codec: str = collections.Counter(codecs).most_common(1)[0][0].lower()
    return "none" if codec == "uncompressed" else codec


class _Columns:
    """The two columns of all slices, handed out in order."""

    def __init__(self, files: Sequence[Any]) -> None:
        readers = [pa.ipc.open_stream(file) for file in files]
        self._schema = readers[0].schema
        self._batches: Iterator[pa.RecordBatch] = itertools.chain.from_iterable(readers)
        self._kept: collections.deque[pa.RecordBatch] = collections.deque()
        self._num_kept = 0

    def take(self, num: int) -> list[Any]:
        """The next `num` rows, as chunked arrays."""
        while self._num_kept < num:
            self._kept.append(next(self._batches))
            self._num_kept += self._kept[-1].num_rows
        taken: list[pa.RecordBatch] = []
        missing = num
        while missing:
            batch = self._kept.popleft()
            if batch.num_rows > missing:
                self._kept.appendleft(batch.slice(missing))
                batch = batch.slice(0, missing)
            taken.append(batch)
            missing -= batch.num_rows
        self._num_kept -= num
        table = pa.Table.from_batches(taken, self._schema)
        return list(table.columns)
