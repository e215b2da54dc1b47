"""Tables: Parquet, and Arrow as a stream or a file; tasks are runs of row groups, or of batches."""

from __future__ import annotations

import atexit
import bisect
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import BadRecord, SourceError
from packidx.format.manifest import RecordRange
from packidx.io.cache import content_of
from packidx.recent import Recent
from packidx.records.containers import base

_BATCH_BYTES = 4 << 20
_CACHE_BYTES = 32 << 20
_MAX_BATCH = 1024  # rows
_ERRORS = (pa.ArrowException, OSError, ValueError)
_MAGIC = b"ARROW1"  # of an Arrow file
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_ROWS = 256  # made into Python objects at once


class TableFile:
    """A file of tables, opened.

    Args:
        groups: rows and bytes of each row group, or batch.
        batches: number of a group → its rows, some at a time.
    """

    def __init__(
        self,
        path: str,
        groups: list[tuple[int, int]],
        batches: Callable[[int], Iterator[pa.RecordBatch]],
    ) -> None:
        self.path, self.batches = path, batches
        self.nbytes = [nbytes for _, nbytes in groups]
        self.starts = [0, *itertools.accumulate(rows for rows, _ in groups)]
        """Number of the first row of each group, and of all rows."""
        self._kept: Recent[int, pa.RecordBatch] = Recent(_CACHE_BYTES)  # by first row
        self._coming: tuple[int, Iterator[pa.RecordBatch]] = (-1, iter(()))  # (its row, batches)

    def record(self, row: int) -> dict[str, Any] | BadRecord:
        """The record in one row; a SourceError if there is none. The last batches are kept."""
        for start, batch in reversed(self._kept.items()):
            if start <= row < start + batch.num_rows:
                return record_at(batch, row - start)
        if not 0 <= row < self.starts[-1]:
            raise base.too_few(self.path, row)
        number = bisect.bisect_right(self.starts, row) - 1
        at, batches = self._coming
        if not self.starts[number] < at <= row:
            at, batches = self.starts[number], self.batches(number)
        self._coming = (-1, iter(()))  # in case of an error
        for batch in batches:
            self._kept.put(at, batch, batch.nbytes)
            at += batch.num_rows
            if row < at:
                self._coming = (at, batches)
                return record_at(batch, row - (at - batch.num_rows))
        raise base.too_few(self.path, row)


class Table(base.Container):
    """A kind of file of tables; `start` and `end` of a range are numbers of groups.

    Args:
        open_file: (path, whether to look at all that may be wrong with it) → it, opened.
        most: files that stay open.
    """

    def __init__(self, open_file: Callable[[str, bool], TableFile], most: int) -> None:
        @functools.lru_cache(maxsize=most)
        def open_remembered(path: str, version: tuple[int, str]) -> TableFile:
            return open_file(path, False)

        self._open, self._remembered = open_file, open_remembered
        atexit.register(open_remembered.cache_clear)  # while all it needs is still there

    def scan(self, path: str, task_bytes: int = base.TASK_BYTES) -> base.ShardScan:
        with base.local_shard(path) as here:
            content = content_of(here)
            file = self._open(here, True)
        cuts, work = base.Cuts(task_bytes, base.TASK_RECORDS), 0
        for group, nbytes in enumerate(file.nbytes):
            cuts.at(group, file.starts[group], work)
            work += nbytes
        ranges = cuts.ranges(len(file.nbytes), file.starts[-1], work)
        return base.ShardScan(content.nbytes, content.sha256, file.starts[-1], ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[base.Record]:
        row = record_range.first_row
        with base.local_shard(path) as here:
            file = self._remembered(here, base.file_version(here))
            for number in range(record_range.start, min(record_range.end, len(file.nbytes))):
                for batch in file.batches(number):
                    for record in records_of(batch):
                        yield base.Record(record, base.Locator(row))
                        row += 1
        if row != record_range.first_row + record_range.num_records:
            raise base.too_few(path, row)

    def read_one(self, path: str, at: base.Locator) -> base.Record:
        with base.local_shard(path) as here:
            return base.Record(self._remembered(here, base.file_version(here)).record(at.row), at)


def records_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | BadRecord]:
    """A batch's rows as records without null members; a row that cannot be one is its error."""
    try:
        rows = batch.to_pylist()
    except (UnicodeDecodeError, pa.ArrowException, OverflowError, ValueError):
        for number in range(batch.num_rows):  # some value is bad: find out whose
            yield record_at(batch, number)
        return
    for row in rows:
        yield without_nulls(row) or {}


def record_at(batch: pa.RecordBatch, number: int) -> dict[str, Any] | BadRecord:
    """One row of a batch as a record."""
    try:
        return without_nulls(batch.slice(number, 1).to_pylist()[0]) or {}
    except UnicodeDecodeError as error:
        return BadRecord("bad_utf8", f"byte {error.start} of a text is not UTF-8")
    except (pa.ArrowException, OverflowError, ValueError) as error:
        return BadRecord("bad_record", f"a value cannot be read: {error}")


def without_nulls(value: Any) -> Any:
    """`value` without the null members of its objects, at any depth.

    Columns hold a null wherever another row has a member that this one lacks, so a null there says
    what a missing member says in JSON.
    """
    if type(value) is dict:
        items = ((key, without_nulls(item)) for key, item in value.items() if item is not None)
        kept = {key: item for key, item in items if item is not None}
        return kept if kept or not value else None
    if type(value) is list and value and type(value[0]) in (dict, list, type(None)):
        return [without_nulls(item) for item in value]
    return value


def _check_names(names: list[str]) -> None:
    """Raise a ValueError if two columns have one name: records have no place for both."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"it has several columns of the same name ({', '.join(twice)}): rename")


def _broken_error(path: str, what: str, error: object) -> SourceError:
    text = " ".join(str(error).split())
    return SourceError(f"{path} is {what}: {text}; restore the file or write it again")


def _open_parquet(path: str, is_checked: bool) -> TableFile:
    """Open a Parquet file; a SourceError if it is none, or broken."""
    try:
        # Not read ahead: a row group of images may be larger than memory should grow. And of an
        # absolute path Arrow takes no part for a home folder or a URL.
        options = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
        parquet = pq.ParquetFile(os.path.abspath(path), **options)
        _check_names(parquet.schema_arrow.names)
    except _ERRORS as error:
        raise _broken_error(path, "no Parquet file that can be read", error) from None
    footers = [parquet.metadata.row_group(n) for n in range(parquet.metadata.num_row_groups)]
    groups = [(footer.num_rows, footer.total_byte_size) for footer in footers]

    def iter_batches(number: int) -> Iterator[pa.RecordBatch]:
        rows, nbytes = groups[number]
        size = max(1, min(_MAX_BATCH, rows * _BATCH_BYTES // max(1, nbytes)))
        try:
            yield from parquet.iter_batches(size, row_groups=[number], use_threads=False)
        except _ERRORS as error:
            raise _broken_error(path, "a Parquet file that is damaged", error) from None

    return TableFile(path, groups, iter_batches)


def _open_arrow(path: str, is_checked: bool) -> TableFile:
    """Map the batches of an Arrow stream or file, which are not read; a SourceError if it is none.

    Args:
        is_checked: validate the buffers of each batch: reading a damaged one could crash.
    """
    try:
        file = pa.memory_map(path)
        if file.read(len(_MAGIC)) == _MAGIC:
            table = pa.ipc.open_file(file)
            held = [table.get_batch(number) for number in range(table.num_record_batches)]
        else:
            file.seek(max(0, file.size() - len(_END)))
            if file.read() != _END:
                raise ValueError("it has no end-of-stream mark, so it is cut")
            file.seek(0)
            table = pa.ipc.open_stream(file)
            held = list(table)
        _check_names(table.schema.names)
        for batch in held if is_checked else ():
            batch.validate(full=True)
    except _ERRORS as error:
        raise _broken_error(path, "no Arrow file that can be read", error) from None

    def iter_batches(number: int) -> Iterator[pa.RecordBatch]:
        starts = range(0, held[number].num_rows, _ROWS)
        return (held[number].slice(start, _ROWS) for start in starts)

    return TableFile(path, [(batch.num_rows, batch.nbytes) for batch in held], iter_batches)


PARQUET = Table(_open_parquet, most=4)
"""Parquet files."""
ARROW = Table(_open_arrow, most=64)
"""Arrow IPC streams or files."""
