"""Slices of shards: what one process rewrites at a time, and the sums over it."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from packidx.errors import BadRecord, SourceError
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import BATCH, ShardContext, examine_batch, raw_records
from packidx.precompute.values import Values, count_values
from packidx.records.containers.base import RawRecord, RecordRange, ShardScan


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """A run of a shard's bytes, or of its row groups; a shard's slices are the whole shard."""

    number: int
    shard: ShardContext
    record_range: RecordRange
    """The records in it; none where `num_records` is 0."""
    start: int
    end: int | None
    """One past its end; None is the shard's end."""
    form: str
    """Of the entries of ``mm_inputs_meta``."""


@dataclass(slots=True)
class SliceTotals:
    """Sums over some records."""

    num_samples: int = 0
    num_tokens: int = 0
    methods: collections.Counter[str] = field(default_factory=collections.Counter)
    rejected: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, value: Values | BadRecord) -> None:
        """One more record."""
        self.num_samples += 1
        if isinstance(value, BadRecord):
            self.rejected[value.reason] += 1
        else:
            self.num_tokens += value.length
            self.methods[value.method] += 1

    def merge(self, other: SliceTotals) -> None:
        """The records of `other`, too."""
        self.num_samples += other.num_samples
        self.num_tokens += other.num_tokens
        self.methods.update(other.methods)
        self.rejected.update(other.rejected)

    @classmethod
    def sum(cls, parts: Iterable[SliceTotals]) -> SliceTotals:
        """The records of all of these."""
        total = cls()
        for part in parts:
            total.merge(part)
        return total

    def to_json(self) -> dict[str, Any]:
        """The sums as a manifest has them."""
        return {
            "num_samples": self.num_samples,
            "num_rejected": self.num_rejected,
            "rejected": dict(sorted(self.rejected.items())),
        }

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())


def make_slices(
    shards: Sequence[ShardContext], scans: Sequence[ShardScan], form: str
) -> list[ShardSlice]:
    """At least one slice per shard, in order; they depend on nothing but the shards."""
    slices: list[ShardSlice] = []
    for shard, scan in zip(shards, scans, strict=True):
        ranges = scan.ranges or (RecordRange(0, 0, 0, 0),)
        starts = [0, *(later.start for later in ranges[1:])]
        ends = [*starts[1:], None]
        for record_range, start, end in zip(ranges, starts, ends, strict=True):
            slices.append(ShardSlice(len(slices), shard, record_range, start, end, form))
    return slices


def counted(
    shard_slice: ShardSlice, counter: RecordCounter
) -> Iterator[tuple[RawRecord, Values | BadRecord]]:
    """A slice's records, and what each is given or why it is given nothing.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    shard, record_range = shard_slice.shard, shard_slice.record_range
    has_records = record_range.num_records > 0
    raws = raw_records(shard, record_range, columns={}) if has_records else iter(())
    left = record_range.num_records
    while batch := list(itertools.islice(raws, BATCH)):
        rows = examine_batch(batch, shard, 0, counter)
        yield from zip(batch, count_values(rows, counter, shard_slice.form), strict=True)
        left -= len(batch)
    if left:
        raise changed(shard_slice)


def changed(shard_slice: ShardSlice) -> SourceError:
    """The error of a shard that is not what was scanned."""
    record_range = shard_slice.record_range
    return SourceError(
        f"{shard_slice.shard.path} changed while it was read: from row {record_range.first_row} on "
        f"there are no {record_range.num_records} records where they were; start again"
    )
