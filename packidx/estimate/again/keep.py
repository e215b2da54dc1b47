"""Which rows of an earlier table stand in the next one: range by range of each shard."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.arrays import Int64s
from packidx.errors import FormatError
from packidx.estimate.again.earlier import PASSING_REASONS, Earlier, has_layout
from packidx.estimate.examine import ShardContext, name_in_shard, raw_records
from packidx.estimate.job import EstimateJob, shard_contexts
from packidx.format import schema
from packidx.format.parquet import as_arrow, conform
from packidx.io.copies import StoredFile, local_copy, overlapped
from packidx.records.containers.base import RecordRange, ShardScan
from packidx.records.containers.tar import TAR
from packidx.records.media.looked_at import References
from packidx.records.shard_marks import has_ranges, is_marked
from packidx.records.shards import Shard


class OldRows(NamedTuple):
    """The rows of one range of a shard, in an earlier table."""

    spans: tuple[Span, ...]
    old_name: str | None
    """What its keys of records without a name of their own began with, where that is another name
    now."""
    place: tuple[int, int, str]
    """sample_id of the first row, number of the shard and name of its source, as they stand in the
    earlier table."""
    references: References
    columns: Mapping[str, str]
    """Of the shard, and what each is used as."""


Kept = dict[tuple[int, int], OldRows]
"""Rows that are taken over, by number of the shard and first record of the range."""


@dataclass(frozen=True)
class Match:
    """A shard of the job, and the one of the earlier table that it is."""

    number: int
    """Of the earlier one."""
    is_moved: bool
    """It has another URI."""


def matches(job: EstimateJob, earlier: Earlier) -> list[Match | None]:
    """For each shard of the job the one that it was; None of one that is new or another."""
    by_content: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, stated in enumerate(earlier.manifest.shards):
        content = stated.fingerprint, stated.bytes, stated.rows, stated.container
        by_content[content].append(number)
    found = []
    for shard, scan in zip(job.shards, job.scans, strict=True):
        here = scan.sha256, scan.nbytes, scan.num_records, shard.container
        same = [n for n in by_content[here] if _is_same(earlier, n, shard, scan)]
        same.sort(key=lambda n: earlier.manifest.shards[n].uri != shard.uri)
        moved = [earlier.manifest.shards[number].uri != shard.uri for number in same]
        found.append(Match(same[0], moved[0]) if same else None)
    return found


def _is_same(earlier: Earlier, number: int, shard: Shard, scan: ShardScan) -> bool:
    stated = earlier.manifest.shards[number]
    if shard.container == TAR and not is_marked(stated, scan.marks):
        return False  # no digest is of the media in it
    if not stated.uri.endswith(earlier.names[number]):
        return False  # what it was called depended on the working folder
    return has_layout(earlier, number, shard) and has_ranges(stated, scan)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What is taken over, and why the rest of the shards that are the same is not."""

    rows: Kept
    reasons: dict[int, str]
    """By number of the shard."""
    damage: list[str]
    """Of parts of the earlier table."""


def kept_rows(job: EstimateJob, earlier: Earlier, found: Sequence[Match | None]) -> KeptRows:
    """The rows that are taken over.

    Raises:
        OSError: a store cannot be asked.
    """
    table = OldTable(earlier, [match for match in found if match is not None])
    rows: Kept = {}
    reasons: dict[int, str] = {}
    first_id = 0
    for context, scan, match in zip(shard_contexts(job), job.scans, found, strict=True):
        if match is not None:
            if job.transform is not None and earlier.first_rows[match.number] != first_id:
                reasons[context.number] = (
                    "its sample ids are others, and the transform draws by them"
                )
            else:
                for part in scan.ranges:
                    old = table.of(match, part, context)
                    if isinstance(old, str):
                        reasons[context.number] = old
                    else:
                        rows[context.number, part.first_row] = old
        first_id += scan.num_records
    return KeptRows(rows, reasons, table.damage)


class OldTable:
    """The rows of an earlier table that may be taken over.

    Args:
        wanted: the shards of which there are some.
    """

    def __init__(self, earlier: Earlier, wanted: Collection[Match]) -> None:
        self._earlier = earlier
        self._files = [file.within(earlier.path) for file in earlier.manifest.files]
        self._starts = list(accumulate((f.rows for f in earlier.manifest.files), initial=0))
        needed = {
            number
            for match in wanted
            for number, _, _ in self._parts(*earlier.first_rows[match.number : match.number + 2])
        }
        self._needed = sorted(needed)
        said = overlapped(_damage, [self._files[number] for number in self._needed])
        wrong = zip(self._needed, said, strict=True)
        self._damaged = {number: text for number, text in wrong if text is not None}

    @property
    def damage(self) -> list[str]:
        """What is wrong with parts, a sentence each."""
        return list(self._damaged.values())

    def of(self, match: Match, part: RecordRange, shard: ShardContext) -> OldRows | str:
        """The rows of one range, or why they must be counted again."""
        first = self._earlier.first_rows[match.number] + part.first_row
        end = first + part.num_records
        parts = self._parts(first, end)
        if any(number in self._damaged for number, _, _ in parts):
            return "its part of the table was damaged"
        if _any_within(self._passing, first, end):
            return "records that were rejected may be usable now"
        if match.is_moved and _any_within(self._rejected, first, end):
            return "what is said of rejected records names its place"
        if not self._earlier.are_unchanged(match.number, part, shard.root):
            return "files that its records refer to are others now"
        name = self._earlier.names[match.number]
        spans = tuple(Span(self._files[number], start, rows) for number, start, rows in parts)
        place = first, match.number, self._earlier.manifest.shards[match.number].source
        columns = self._earlier.manifest.columns_of(match.number)
        references = self._earlier.references(match.number, part)
        return OldRows(spans, None if name == shard.name else name, place, references, columns)

    def _parts(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """(number of the part, first row in it, rows) of rows ``first .. end - 1`` of the table."""
        parts = []
        number = max(0, bisect_right(self._starts, first) - 1)
        while first < end:
            until = min(end, self._starts[number + 1])
            if until > first:
                parts.append((number, first - self._starts[number], until - first))
            first, number = max(first, until), number + 1
        return parts

    @cached_property
    def _passing(self) -> Int64s:
        """Rows that were rejected for a reason that may be gone."""
        reasons = PASSING_REASONS.intersection(self._earlier.manifest.rejected)
        return self._rejected_for(reasons) if reasons else np.zeros(0, np.int64)

    @cached_property
    def _rejected(self) -> Int64s:
        return self._rejected_for(self._earlier.manifest.rejected)

    def _rejected_for(self, reasons: Collection[str]) -> Int64s:
        listed = pa.array(sorted(reasons), pa.string())
        return self._where("reason", lambda column: pc.is_in(column, listed))

    def _where(self, name: str, holds: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> Int64s:
        rows = [np.zeros(0, np.int64)]
        for number in self._needed:
            if number not in self._damaged:
                with local_copy(self._files[number]) as copy:
                    column = pq.read_table(copy, columns=[name]).column(0)
                rows.append(np.flatnonzero(np.asarray(holds(column))) + self._starts[number])
        return np.concatenate(rows)


def _damage(file: StoredFile) -> str | None:
    try:
        with local_copy(file):
            return None
    except FormatError as error:
        return str(error).partition(":")[0]


def _any_within(rows: Int64s, first: int, end: int) -> bool:
    """Whether some of ascending `rows` is one of ``first .. end - 1``."""
    return bool(np.searchsorted(rows, first) < np.searchsorted(rows, end))


class Span(NamedTuple):
    """Neighbouring rows of a part of the earlier table."""

    file: StoredFile
    first: int
    num_rows: int


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """All of a part, which has the content that its manifest states.

    Raises:
        FormatError: it has another one, or none.
        OSError: it cannot be read.
    """
    with local_copy(file) as copy, pq.ParquetFile(copy) as stored:
        return conform(stored.read(use_threads=False), schema.ALL_LENGTHS)


def taken_rows(
    old: OldRows, shard: ShardContext, record_range: RecordRange, first_id: int
) -> pa.Table:
    """The rows of a range as a count of it would make them.

    Args:
        first_id: sample_id of the first one.

    Raises:
        FormatError: a part of the earlier table is damaged.
        SourceError: the shard cannot be read.
    """
    tables = [read_part(span.file).slice(span.first, span.num_rows) for span in old.spans]
    rows = pa.concat_tables(tables)
    if old.old_name is None and old.place == (first_id, shard.number, shard.source):
        return rows
    num = rows.num_rows
    columns = {
        "sample_id": as_arrow(np.arange(first_id, first_id + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(shard.number, pa.int32()), num),
        "source": pa.repeat(pa.scalar(shard.source, pa.string()), num),
    }
    if old.old_name is not None:
        columns["key"] = _renamed(rows.column("key"), old.old_name, shard, record_range)
    for name, values in columns.items():
        rows = rows.set_column(
            rows.schema.get_field_index(name), schema.ALL_LENGTHS.field(name), values
        )
    return rows


def _renamed(
    keys: pa.ChunkedArray, old_name: str, shard: ShardContext, record_range: RecordRange
) -> pa.ChunkedArray | pa.Array:
    """Keys of records without a name of their own, which begin with the shard's.

    A record may be called so itself: then the records are asked.
    """
    if not pc.any(pc.starts_with(keys, f"{old_name}#")).as_py():
        return keys
    own = [(raw.row, name_in_shard(raw)) for raw in raw_records(shard, record_range)]
    names = [f"{shard.name}#{row}" if name is None else name for row, name in own]
    return pa.array(names, pa.string())
