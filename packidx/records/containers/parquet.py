"""Parquet: records are rows, tasks are runs of row groups."""

from __future__ import annotations

import atexit
import bisect
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import BadRecord, SourceError
from packidx.recent import Recent
from packidx.records.containers.base import BrokenFile, broken, too_few
from packidx.records.containers.blocks import file_version
from packidx.records.containers.columns import Columnar, check_batch, check_names, record_at

_BATCH_BYTES = 4 << 20
_CACHE_BYTES = 32 << 20
_MAX_BATCH = 1024  # rows
_ERRORS = (pa.ArrowException, OSError, ValueError, BrokenFile)  # ValueError: names not in UTF-8


class Parquet(Columnar):
    """Parquet files."""

    def checked(self, path: str) -> _File:
        return self.opened(path)

    def opened(self, path: str) -> _File:
        return _opened(path)

    def record(self, path: str, row: int) -> dict[str, Any] | BadRecord:
        return _cached(path, file_version(path)).record(row)


@dataclass(frozen=True)
class _File:
    """An opened file: where its row groups begin, and their batches."""

    path: str
    parquet: pq.ParquetFile
    nbytes: list[int]
    starts: list[int]

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """A row group's rows, a few MB at a time."""
        rows = max(1, self.starts[number + 1] - self.starts[number])
        size = max(1, min(_MAX_BATCH, rows * _BATCH_BYTES // max(1, self.nbytes[number])))
        try:
            yield from self.parquet.iter_batches(size, row_groups=[number], use_threads=False)
        except _ERRORS as error:
            raise broken(self.path, "a Parquet file that is damaged", error) from None


def _opened(path: str) -> _File:
    """A file, opened; a SourceError if it is no Parquet, or broken."""
    try:
        # Not read ahead: a row group of images may be larger than memory should grow.
        file = pq.ParquetFile(
            os.path.abspath(path),  # of which Arrow takes no part for a home folder or a URL
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )
        check_names(file.schema_arrow)
    except _ERRORS as error:
        raise broken(path, "no Parquet file that can be read", error) from None
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    starts = [0, *itertools.accumulate(group.num_rows for group in groups)]
    return _File(path, file, [group.total_byte_size for group in groups], starts)


class _Rows:
    """Records of one file by row: the batches last read are kept, up to `_CACHE_BYTES`."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._kept: Recent[int, pa.RecordBatch] = Recent(_CACHE_BYTES)  # by first row
        self._coming: tuple[int, Iterator[pa.RecordBatch]] = (-1, iter(()))  # (its row, batches)

    def record(self, row: int) -> dict[str, Any] | BadRecord:
        for start, batch in reversed(self._kept.items()):
            if start <= row < start + batch.num_rows:
                return record_at(batch, row - start)
        starts = self._file.starts
        number = bisect.bisect_right(starts, row) - 1
        if row < 0 or number >= len(self._file.nbytes):
            raise too_few(self._file.path, row)
        at, batches = self._coming
        if not starts[number] < at <= row:
            at, batches = starts[number], self._file.batches(number)
        try:
            for batch in batches:
                self._kept.put(at, batch, batch.nbytes)
                at += batch.num_rows
                self._coming = (at, batches)
                if row < at:
                    return record_at(batch, row - (at - batch.num_rows))
        except SourceError:
            self._coming = (-1, iter(()))
            raise
        raise too_few(self._file.path, row)


@functools.lru_cache(maxsize=4)
def _cached(path: str, version: tuple[int, str]) -> _Rows:
    return _Rows(_opened(path))


atexit.register(_cached.cache_clear)  # while all it needs is still there


_FILE_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_ROWS = 256  # made into Python objects at once
_ARROW_ERRORS = (pa.ArrowException, OSError, BrokenFile)


class Arrow(Columnar):
    """Arrow IPC streams or files."""

    def checked(self, path: str) -> _Mapped:
        return _mapped(path, check_batch)

    def opened(self, path: str) -> _Mapped:
        # Mapped anew for each range: pages that were read do not stay in memory with it.
        return _cached_arrow(path, file_version(path)).mapped_anew()

    def record(self, path: str, row: int) -> dict[str, Any] | BadRecord:
        file = _cached_arrow(path, file_version(path))
        number = bisect.bisect_right(file.starts, row) - 1
        if row < 0 or number >= len(file.nbytes):
            raise too_few(path, row)
        return record_at(file.batch(number), row - file.starts[number])


@dataclass(frozen=True)
class _Mapped:
    """A mapped file and where its batches are."""

    path: str
    map: pa.MemoryMappedFile
    reader: pa.RecordBatchFileReader | None
    """None of a stream."""
    schema: pa.Schema
    offsets: list[int]
    """Of a stream's messages."""
    nbytes: list[int]
    starts: list[int]

    def mapped_anew(self) -> _Mapped:
        """This file in a mapping of its own, without looking for its batches again."""
        try:
            file = pa.memory_map(self.path)
            reader = None if self.reader is None else pa.ipc.open_file(file)
        except _ARROW_ERRORS as error:
            raise broken(self.path, "no Arrow file that can be read", error) from None
        return replace(self, map=file, reader=reader)

    def batch(self, number: int) -> pa.RecordBatch:
        """A batch, where it lies in the file."""
        try:
            if self.reader is not None:
                return self.reader.get_batch(number)
            self.map.seek(self.offsets[number])
            return pa.ipc.read_record_batch(pa.ipc.read_message(self.map), self.schema)
        except _ARROW_ERRORS as error:
            raise broken(self.path, "an Arrow file that is damaged", error) from None

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """A batch, some rows at a time."""
        batch = self.batch(number)
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _mapped(path: str, check: Callable[[pa.RecordBatch], None] | None = None) -> _Mapped:
    """A file, mapped.

    Args:
        check: called with each batch; none of a file that has been checked before.

    Raises:
        SourceError: it is no Arrow file, or cut, or `check` found it damaged.
    """
    offsets, sizes, rows = [], [], []
    try:
        file = pa.memory_map(path)
        reader = _reader(file)
        for offset, batch in _batches(file, reader):
            if check is not None:
                check(batch)
            offsets.append(offset)
            sizes.append(batch.nbytes)
            rows.append(batch.num_rows)
    except (*_ARROW_ERRORS, ValueError) as error:
        raise broken(path, "no Arrow file that can be read", error) from None
    stays = reader if isinstance(reader, pa.RecordBatchFileReader) else None
    starts = [0, *itertools.accumulate(rows)]
    return _Mapped(path, file, stays, reader.schema, offsets, sizes, starts)


def _reader(file: pa.MemoryMappedFile) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    if file.size() < 8:
        raise BrokenFile("it is too short")
    if file.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
        reader = pa.ipc.open_file(file)
    else:
        file.seek(file.size() - len(_END))
        if file.read() != _END:
            raise BrokenFile("it has no end-of-stream mark, so it is cut")
        file.seek(0)
        reader = pa.ipc.open_stream(file)
    check_names(reader.schema)
    for field in reader.schema:
        if pa.types.is_dictionary(field.type):
            raise BrokenFile(f"its column {field.name!r} is dictionary-encoded: write it plain")
    return reader


def _batches(file: pa.MemoryMappedFile, reader: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches, with their offsets in a stream."""
    if isinstance(reader, pa.RecordBatchFileReader):
        for number in range(reader.num_record_batches):
            yield 0, reader.get_batch(number)
        return
    offset = file.tell()
    for batch in reader:
        yield offset, batch
        offset = file.tell()


@functools.lru_cache(maxsize=64)
def _cached_arrow(path: str, version: tuple[int, str]) -> _Mapped:
    return _mapped(path)


atexit.register(_cached_arrow.cache_clear)  # while all it needs is still there
