"""What every container of records gives: a scan, ranges for parallel work, records by row."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.io.storage import unreadable

TASK_BYTES = 8 << 20
"""Bytes of a shard that one task counts; part of the output's layout, so not an option."""

BLOCK = 1 << 20
"""Bytes read at once where records are looked for one by one."""

MAX_RECORD = 256 << 20
"""Bytes of one record; a longer one is rejected without being held in memory."""

BOM = b"\xef\xbb\xbf"

Progress = Callable[[int], None]
"""Called with the number of bytes just read."""


@dataclass(frozen=True, slots=True)
class Range:
    """A run of whole records of a shard, which a task reads."""

    start: int
    """Where it begins, in the container's own units: bytes, or the number of a row group."""
    end: int
    """One past its end, in the same units."""
    first_row: int
    """Number of the first record in it."""
    num_records: int
    weight: int | None = None
    """Its bytes, where `start` and `end` count something else."""

    @property
    def nbytes(self) -> int:
        """About how much there is to read, in bytes."""
        return self.end - self.start if self.weight is None else self.weight


@dataclass(frozen=True, slots=True)
class ShardScan:
    """What one pass over a shard finds out."""

    nbytes: int
    sha256: str
    num_records: int
    """Good and bad ones; what is blank is none."""
    ranges: tuple[Range, ...]
    """The shard cut every `TASK_BYTES` or so where the container allows it; none is empty."""
    marks: Mapping[str, Any] = field(default_factory=dict)
    """By what a reader sees that it is another one (`shard_marks`)."""


class RawRecord(NamedTuple):
    """One record as it stands in its shard, or why there is none."""

    row: int
    """Its number in the shard."""
    offset: int | None
    """Its first byte in the shard; None where the container is columnar or compressed."""
    nbytes: int | None
    record: dict[str, Any] | BadRecord
    key: str | None = None
    """Its name in the shard, where the container has names beside the records."""


class TooLarge(bytes):
    """What stands for a record that is too large to be held: some of its first bytes.

    Args:
        head: these.
        nbytes: its size.
        limit: the size that it is over.
    """

    nbytes: int
    limit: int

    def __new__(cls, head: bytes, nbytes: int, limit: int) -> TooLarge:
        self = super().__new__(cls, head)
        self.nbytes, self.limit = nbytes, limit
        return self


def size_of(raw: bytes) -> int:
    """Bytes of a record in its file."""
    return raw.nbytes if isinstance(raw, TooLarge) else len(raw)


def too_large(nbytes: int, limit: int, where: str = "") -> BadRecord:
    """The error of a record over the limit."""
    bound = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    text = f"the record has {nbytes:,} bytes, over {bound}: write its media to files{where}"
    return BadRecord("record_too_large", text)


class Gathered:
    """A record's bytes, block by block, held up to a limit.

    Args:
        limit: in bytes.
        blank: bytes that are no content.
    """

    def __init__(self, limit: int, blank: bytes) -> None:
        self.nbytes = 0
        self._limit, self._blank = limit, blank
        self._pieces: list[bytes] = []
        self._head: bytes | None = None  # of a record over the limit

    def add(self, piece: bytes) -> None:
        """The next bytes of it."""
        self.nbytes += len(piece)
        if self.nbytes <= self._limit:
            self._pieces.append(piece)
            return
        for one in (*self._pieces, piece):
            self._head = self._head or one.strip(self._blank)[:64]
        self._pieces.clear()

    def take(self) -> bytes:
        """All of it, or a `TooLarge`, which is empty where it is blank; the next one begins."""
        whole = b"".join(self._pieces)
        if self._head is not None:
            whole = TooLarge(self._head, self.nbytes, self._limit)
        self._pieces, self._head, self.nbytes = [], None, 0
        return whole


class Container(Protocol):
    """A kind of file that holds records. Stateless: what is remembered is remembered by path."""

    def scan(
        self, path: str, progress: Progress | None = None, task_bytes: int = TASK_BYTES
    ) -> ShardScan:
        """Hash a shard, count its records and find where tasks may start.

        Raises:
            SourceError: the file cannot be read or is broken as a whole, so that the number of its
                records is unknown.
        """

    def read(self, path: str, part: Range) -> Iterator[RawRecord]:
        """The records of a range, in order.

        Raises:
            SourceError: the file cannot be read.
        """

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        """One record, by its byte range where it has one and by its row otherwise.

        Raises:
            BadRecord: there is a record, but it cannot be understood; the detail names the file.
            SourceError: the file cannot be read, or has no such record.
        """


class BrokenFile(Exception):
    """A file broken as a whole; says what is wrong, and whoever knows its path adds that."""


def broken(path: str, what: str, error: object) -> SourceError:
    """The error of a file that is not, or not wholly, what its name says."""
    text = " ".join(str(error).split())
    return SourceError(f"{path} is {what}: {text}; restore the file or write it again")


def too_few(path: str, row: int) -> SourceError:
    """The error of a shard that ends before a record that was counted."""
    return SourceError(
        f"{path} has no record {row}: the shard is not the one that was counted, "
        "so run estimate again"
    )


class Hashing:
    """Digest and size of the bytes that pass through it."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._hasher = hashlib.sha256()
        self._progress = progress
        self.nbytes = 0

    def add(self, block: bytes) -> None:
        self._hasher.update(block)
        self.nbytes += len(block)
        if self._progress is not None:
            self._progress(len(block))

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


def file_hash(path: str, progress: Progress | None = None) -> Hashing:
    """The digest of a whole file.

    Raises:
        SourceError: it cannot be read.
    """
    hashing = Hashing(progress)
    for block in file_blocks(path, size=4 << 20):
        hashing.add(block)
    return hashing


def file_blocks(
    path: str, start: int = 0, end: int | None = None, size: int = BLOCK
) -> Iterator[bytes]:
    """The bytes of the range of a file, or of a URL, block by block.

    Raises:
        SourceError: the file cannot be read.
    """
    if urls.is_url(path):
        yield from _url_blocks(path, start, end, size)
        return
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            file.seek(start)
            left = size if end is None else end - start
            while left > 0 and (block := file.read(min(size, left))):
                if end is not None:
                    left -= len(block)
                yield block
    except OSError as error:
        raise unreadable(path, error) from None


def _url_blocks(url: str, start: int, end: int | None, size: int) -> Iterator[bytes]:
    try:
        end = cache.remembered_stat(url).nbytes if end is None else end
        while start < end and (block := storage.read_range(url, start, min(size, end - start))):
            start += len(block)
            yield block
    except OSError as error:
        raise unreadable(url, error) from error


def open_regular(path: str, flags: int) -> int:
    """`os.open` of a regular file: a pipe of that name must not stop the program.

    Raises:
        OSError: there is none, or it is something else.
    """
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        text = os.strerror(what) if what == errno.EISDIR else "it is no regular file"
        raise OSError(what, text)
    return handle


def file_version(path: str) -> tuple[int, str]:
    """A file's size, and what else changes with its content: nothing remembered of it may outlive
    that.

    Raises:
        SourceError: the file is not there.
    """
    try:
        found = cache.remembered_stat(path) if urls.is_url(path) else storage.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return found.nbytes, found.version


def read_bytes(path: str, offset: int, nbytes: int) -> bytes:
    """The bytes at a locator.

    Raises:
        SourceError: the file is missing, unreadable or ends before the record does.
    """
    try:
        data = storage.read_range(path, offset, nbytes)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if len(data) < nbytes:
        raise SourceError(
            f"{path} has only {len(data)} of the {nbytes} bytes planned at offset {offset}: "
            "the shard is not the one that was counted, so run estimate again"
        )
    return data


def group_ranges(
    starts: Sequence[int], nbytes: Sequence[int], task_bytes: int
) -> tuple[Range, ...]:
    """Ranges of row groups or batches, cut every `task_bytes` or so.

    Args:
        starts: number of each group's first row, and of all rows.
        nbytes: of each group.
    """
    ranges: list[Range] = []
    begin, total = 0, 0
    for number, size in enumerate(nbytes):
        total += size
        if total >= task_bytes or number + 1 == len(nbytes):
            first, end = starts[begin], starts[number + 1]
            if end > first:
                ranges.append(Range(begin, number + 1, first, end - first, total))
            begin, total = number + 1, 0
    return tuple(ranges)


def within(cuts: list[tuple[int, int]]) -> tuple[Range, ...]:
    """Ranges between neighbouring (start, records before it), without those that are empty."""
    return tuple(
        Range(start, end, row, until - row)
        for (start, row), (end, until) in zip(cuts, cuts[1:], strict=False)
        if until > row
    )


def without_nulls(value: Any) -> Any:
    """`value` without the null members of its objects, at any depth.

    Columns hold a null wherever another row has a member that this one lacks, so a null there says
    what a missing member says in JSON.
    """
    if type(value) is dict:
        kept = {key: without_nulls(item) for key, item in value.items() if item is not None}
        return kept if kept or not value else None
    if type(value) is list and value and type(value[0]) in (dict, list, type(None)):
        return [without_nulls(item) for item in value]
    return value
