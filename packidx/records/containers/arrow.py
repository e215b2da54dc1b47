"""Arrow IPC files, as `datasets` saves them: streams (or files) of record batches.

The file is mapped, not read; a batch is looked at where it lies. What is found out once per process
and file is where each batch begins.
"""

from __future__ import annotations

import atexit
import bisect
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from packidx.errors import BadRecord
from packidx.records.containers.base import (
    TASK_BYTES,
    BrokenFile,
    Progress,
    RawRecord,
    RecordRange,
    ShardScan,
    broken,
    group_ranges,
    too_few,
)
from packidx.records.containers.blocks import file_hash, file_version
from packidx.records.containers.columns import check_batch, check_names, record_at, records_of

_FILE_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_ROWS = 256  # made into Python objects at once
_ERRORS = (pa.ArrowException, OSError, BrokenFile)


class Arrow:
    """An Arrow IPC stream or file; `start` and `end` of a range are numbers of batches."""

    def scan(
        self, path: str, progress: Progress | None = None, task_bytes: int = TASK_BYTES
    ) -> ShardScan:
        hashing = file_hash(path, progress)
        file = _Mapped(path, check_batch)
        ranges = group_ranges(file.starts, file.nbytes, task_bytes)
        return ShardScan(hashing.nbytes, hashing.sha256, file.starts[-1], ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        # Mapped anew for each range: pages that were read do not stay in memory with it.
        file = _cached(path, file_version(path)).mapped_anew()
        row = record_range.first_row
        for number in range(record_range.start, min(record_range.end, len(file.nbytes))):
            batch = file.batch(number)
            for start in range(0, batch.num_rows, _ROWS):
                for record in records_of(batch.slice(start, _ROWS)):
                    yield RawRecord(row, None, None, record)
                    row += 1
        if row != record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        file = _cached(path, file_version(path))
        number = bisect.bisect_right(file.starts, row) - 1
        if row < 0 or number >= len(file.nbytes):
            raise too_few(path, row)
        record = record_at(file.batch(number), row - file.starts[number])
        if isinstance(record, BadRecord):
            raise BadRecord(record.reason, f"{record.detail} ({path}, row {row})")
        return record


class _Mapped:
    """A mapped file and where its batches are.

    Args:
        path: of the file.
        check: called with each batch; none of a file that has been checked before.

    Raises:
        SourceError: it is no Arrow file, or cut, or `check` found it damaged.
    """

    def __init__(self, path: str, check: Callable[[pa.RecordBatch], None] | None = None) -> None:
        self.path = path
        self._places: list[int] = []  # of a stream's messages
        self.nbytes: list[int] = []
        rows: list[int] = []
        try:
            self._map = pa.memory_map(path)
            self._file = self._open_file()
            batches = self._stream() if self._file is None else _file_batches(self._file)
            for batch in batches:
                if check is not None:
                    check(batch)
                rows.append(batch.num_rows)
                self.nbytes.append(batch.nbytes)
        except (*_ERRORS, ValueError) as error:
            raise broken(path, "no Arrow file that can be read", error) from None
        self.starts = [0, *itertools.accumulate(rows)]

    def _open_file(self) -> pa.RecordBatchFileReader | None:
        if self._map.size() < 8:
            raise BrokenFile("it is too short")
        if self._map.read(len(_FILE_MAGIC)) != _FILE_MAGIC:
            return None
        reader = pa.ipc.open_file(self._map)
        self._check(reader.schema)
        return reader

    def _stream(self) -> Iterator[pa.RecordBatch]:
        self._map.seek(self._map.size() - len(_END))
        if self._map.read() != _END:
            raise BrokenFile("it has no end-of-stream mark, so it is cut")
        self._map.seek(0)
        reader = pa.ipc.open_stream(self._map)
        self.schema = reader.schema
        self._check(reader.schema)
        place = self._map.tell()
        for batch in reader:
            self._places.append(place)
            place = self._map.tell()
            yield batch

    @staticmethod
    def _check(schema: pa.Schema) -> None:
        check_names(schema)
        for field in schema:
            if pa.types.is_dictionary(field.type):
                raise BrokenFile(f"its column {field.name!r} is dictionary-encoded: write it plain")

    def mapped_anew(self) -> _Mapped:
        """This file in a mapping of its own, without looking for its batches again."""
        other = copy.copy(self)
        try:
            other._map = pa.memory_map(self.path)
            other._file = None if self._file is None else pa.ipc.open_file(other._map)
        except _ERRORS as error:
            raise broken(self.path, "no Arrow file that can be read", error) from None
        return other

    def batch(self, number: int) -> pa.RecordBatch:
        """A batch, where it lies in the file."""
        try:
            if self._file is not None:
                return self._file.get_batch(number)
            self._map.seek(self._places[number])
            return pa.ipc.read_record_batch(pa.ipc.read_message(self._map), self.schema)
        except _ERRORS as error:
            raise broken(self.path, "an Arrow file that is damaged", error) from None


def _file_batches(file: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_record_batches):
        yield file.get_batch(number)


@functools.lru_cache(maxsize=64)
def _cached(path: str, version: tuple[int, str]) -> _Mapped:
    return _Mapped(path)


atexit.register(_cached.cache_clear)  # while all it needs is still there
