"""What every container of records gives: a scan, ranges for parallel work, records by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from packidx.errors import BadRecord, SourceError

TASK_BYTES = 8 << 20
"""Bytes of a shard that one task counts; part of the output's layout, so not an option."""
TASK_RECORDS = 1 << 18
"""Records that it counts, where they are lines: there is a row for a line of two bytes, too."""

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RecordRange:
    """A run of whole records of a shard, which a task reads."""

    start: int
    """Where it begins, in the container's own units: bytes, or numbers of row groups or records."""
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
    ranges: tuple[RecordRange, ...]
    """The shard cut every `TASK_BYTES` or so where the container allows it; none is empty."""
    marks: Mapping[str, Any] = field(default_factory=dict)
    """By what a reader sees that it is another one (`shard_marks`)."""
    num_hashed: int | None = None
    """Bytes that the digest is of, where it is not of all."""


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
    pair: str | None = None
    """Which of `format.terms.PAIR_SIDES` this is, where both sides of a pair are samples."""

    @property
    def number(self) -> int:
        """Number of its sample in the shard."""
        return self.row if self.pair is None else 2 * self.row + (self.pair == "rejected")


class Container(Protocol):
    """A kind of file that holds records. Stateless: what is remembered is remembered by path."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        """Hash a shard, count its records and find where tasks may start.

        Raises:
            SourceError: the file cannot be read or is broken as a whole, so that the number of its
                records is unknown.
        """

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
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


@contextmanager
def named(path: str, advice: str = "") -> Iterator[None]:
    """Turns a `BrokenFile` in the block into a `SourceError` with the file's name."""
    try:
        yield
    except BrokenFile as error:
        raise SourceError(f"{path}: {error}{advice}") from None


def attempted(make: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | BadRecord:
    """What `make` returns, or why it is no record, as a value."""
    try:
        return make(*arguments)
    except BadRecord as error:
        return error.with_traceback(None)
    except (MemoryError, RecursionError) as error:
        return BadRecord("bad_record", f"the record is too large: {type(error).__name__}")


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


def group_ranges(
    starts: Sequence[int], nbytes: Sequence[int], task_bytes: int
) -> tuple[RecordRange, ...]:
    """Ranges of row groups or batches, cut every `task_bytes` or so.

    Args:
        starts: number of each group's first row, and of all rows.
        nbytes: of each group.
    """
    ranges: list[RecordRange] = []
    begin, total = 0, 0
    for number, size in enumerate(nbytes):
        total += size
        if total >= task_bytes or number + 1 == len(nbytes):
            first, end = starts[begin], starts[number + 1]
            if end > first:
                ranges.append(RecordRange(begin, number + 1, first, end - first, total))
            begin, total = number + 1, 0
    return tuple(ranges)


def within(cuts: list[tuple[int, int]]) -> tuple[RecordRange, ...]:
    """Ranges between neighbouring (start, records before it), without those that are empty."""
    return tuple(
        RecordRange(start, end, row, until - row)
        for (start, row), (end, until) in zip(cuts, cuts[1:], strict=False)
        if until > row
    )
