"""The interface of all containers of records: a scan, ranges for parallel work, records by row.

And the bytes of a file, block by block or by range. A file that cannot be read is a SourceError.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from packidx.errors import BadRecord, SourceError
from packidx.format.manifest import RecordRange
from packidx.io import cache, storage, urls
from packidx.io.ranges import Extent
from packidx.io.storage import raise_unreadable, unreadable_error

TASK_BYTES = 8 << 20
"""Bytes of a shard that one task counts; part of the output's layout, so not an option."""
TASK_RECORDS = 1 << 18
"""Records that it counts, where they are lines: there is a row for a line of two bytes, too."""


@dataclass(frozen=True, slots=True)
class ShardScan:
    """The result of one pass over a shard."""

    nbytes: int
    sha256: str
    num_records: int
    """Good and bad ones; what is blank is none."""
    ranges: tuple[RecordRange, ...]
    """The shard cut every `TASK_BYTES` or so where the container allows it; none is empty."""
    edges: tuple[tuple[str, bool], ...] = ()
    """Key of the first and of the last record, where one may go on in the next shard, and True if
    it is files without a record."""


class Locator(NamedTuple):
    """Place of a record in its shard: row and bytes, which are None in a columnar or compressed
    container."""

    row: int
    offset: int | None = None
    nbytes: int | None = None


class Record(NamedTuple):
    """One record as it stands in its shard."""

    data: dict[str, Any] | BadRecord
    """The record, or why it cannot be read."""
    locator: Locator
    key: str | None = None
    """The name in the shard, if the container has names beside the records."""
    members: Mapping[str, bytes | Extent] | None = None
    """Files beside it, by their whole names; None in other containers."""


class Container(ABC):
    """A kind of file that holds records, here or in a store. Stateless: what is remembered is
    remembered by path."""

    hashes_all = True
    """True if the digest of a scan is of all bytes of the file."""

    @abstractmethod
    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        """Hash a shard, count its records and find where tasks may start; a SourceError if it is
        broken as a whole, so that the number of its records is unknown."""

    @abstractmethod
    def read(self, path: str, record_range: RecordRange) -> Iterator[Record]:
        """The records of a range, in order; a SourceError if the file cannot be read."""

    @abstractmethod
    def read_one(self, path: str, at: Locator) -> Record:
        """Read one record, by its byte range where it has one and by its row otherwise; a
        SourceError if the file cannot be read, or has no such record."""


class BrokenFile(Exception):
    """A file broken as a whole; `name_path` adds its path."""


@contextlib.contextmanager
def name_path(path: str, copy: str = "") -> Iterator[None]:
    """Name `path` in a `SourceError` of the block, not the copy that is read, and in a
    `BrokenFile`, which becomes one."""
    try:
        yield
    except BrokenFile as error:
        raise SourceError(f"{path}: {error}") from None
    except SourceError as error:
        if not copy:
            raise
        raise SourceError(str(error).replace(copy, path)) from error


def too_few(path: str, row: int) -> SourceError:
    """The error of a shard that ends before a record that was counted."""
    return SourceError(f"{path} has no record {row}: the shard is not the one that was counted")


class Cuts:
    """Cuts a shard into ranges of `task_bytes` of work or `task_records`, as it is read."""

    def __init__(self, task_bytes: int, task_records: int = sys.maxsize) -> None:
        self._task_bytes, self._task_records = task_bytes, task_records
        self._begun: list[tuple[int, int, int]] = []

    def at(self, place: int, row: int, work: int) -> None:
        """A range may begin at `place`, before record `row`, with `work` bytes done so far."""
        if self._begun:
            _, first, done = self._begun[-1]
            if work - done < self._task_bytes and row - first < self._task_records:
                return
        self._begun.append((place, row, work))

    def ranges(self, end: int, num_records: int, work: int | None) -> tuple[RecordRange, ...]:
        """All ranges of a shard; `work` is that of all of it, None if places are bytes."""
        cuts = [*self._begun, (end, num_records, work or 0)]
        return tuple(
            RecordRange(start, end, row, until - row, None if work is None else after - before)
            for (start, row, before), (end, until, after) in itertools.pairwise(cuts)
            if until > row
        )


# -- bytes -----------------------------------------------------------------------------------------


def file_version(path: str) -> tuple[int, str]:
    """A file's size, and what else changes with its content: nothing remembered of it may outlive
    that."""
    with raise_unreadable(path):
        status = cache.remembered_stat(path) if urls.is_url(path) else storage.stat(path)
    return status.nbytes, status.version


def read_bytes(path: str, at: Locator) -> bytes:
    """The bytes of a record at its locator; a SourceError if the file does not have all of them."""
    if at.offset is None or at.nbytes is None:
        raise SourceError(f"record {at.row} of {path} has no byte range: run estimate again")
    try:
        data = storage.read_range(path, at.offset, at.nbytes)
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error
    if len(data) < at.nbytes:
        text = f"{path} has only {len(data)} of the {at.nbytes} bytes planned at {at.offset}"
        raise SourceError(f"{text}: it is not the shard that was counted, run estimate again")
    return data


@contextlib.contextmanager
def local_shard(path: str) -> Iterator[str]:
    """A file of this machine with the content of `path`, which errors in the block name."""
    copy = ""
    if urls.is_url(path):
        with raise_unreadable(path):
            copy = cache.fetch_copy(path)
    with name_path(path, copy), raise_unreadable(path):
        yield copy or path
