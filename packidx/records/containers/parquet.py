"""Parquet: records are rows, tasks are runs of row groups."""

from __future__ import annotations

import atexit
import bisect
import functools
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import BadRecord, SourceError
from packidx.recent import Recent
from packidx.records.containers.base import BrokenFile, broken, too_few
from packidx.records.containers.blocks import file_version
from packidx.records.containers.columns import Columnar, check_names, record_at

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
