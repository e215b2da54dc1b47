"""Pieces of shards: what one process rewrites at a time, and the sums over it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field

from packidx.errors import BadRecord, SourceError
from packidx.estimate.examine import ShardContext
from packidx.precompute.values import Values
from packidx.records.containers.base import RecordRange, ShardScan


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a shard's bytes, or of its row groups; a shard's pieces are the whole shard."""

    number: int
    shard: ShardContext
    part: RecordRange
    """The records in it; none where `num_records` is 0."""
    start: int
    end: int | None
    """One past its end; None is the shard's end."""
    form: str
    """Of the entries of ``mm_inputs_meta``."""


@dataclass(slots=True)
class Tally:
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

    def merge(self, other: Tally) -> None:
        """The records of `other`, too."""
        self.num_samples += other.num_samples
        self.num_tokens += other.num_tokens
        self.methods.update(other.methods)
        self.rejected.update(other.rejected)

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())


def make_pieces(
    shards: Sequence[ShardContext], scans: Sequence[ShardScan], form: str
) -> list[Piece]:
    """At least one piece per shard, in order; they depend on nothing but the shards."""
    pieces: list[Piece] = []
    for shard, scan in zip(shards, scans, strict=True):
        ranges = scan.ranges or (RecordRange(0, 0, 0, 0),)
        starts = [0, *(part.start for part in ranges[1:])]
        ends = [*starts[1:], None]
        for part, start, end in zip(ranges, starts, ends, strict=True):
            pieces.append(Piece(len(pieces), shard, part, start, end, form))
    return pieces


def changed(piece: Piece) -> SourceError:
    """The error of a shard that is not what was scanned."""
    return SourceError(
        f"{piece.shard.path} changed while it was read: from row {piece.part.first_row} on there "
        f"are no {piece.part.num_records} records where they were; start again"
    )
