"""Parts: files of rows, each beside a note of what its rows are made of, so that none is counted
twice.

A range of a shard is known by its key: the recipe and the range's content. A note names the keys of
its part in order, where each range stands in the table, and the files that its records refer to. A
killed run, a table that is there, a file that grew: each is one lookup of keys. The note is written
after its part, and states the part's digest.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import structs

from packidx.digests import file_digest
from packidx.errors import FormatError
from packidx.format import parquet, schema
from packidx.format.manifest import File
from packidx.format.parquet import as_arrow, conform
from packidx.io import files
from packidx.io.copies import StoredFile, local_copy
from packidx.io.files import refuse_open_files
from packidx.records.containers.base import RecordRange
from packidx.records.media.opener import NOTHING, References
from packidx.records.media.paths import MediaRoot

ROW_GROUP = 16384
"""Rows of a row group: pinned, because the file's bytes depend on it."""

PASSING_REASONS = frozenset(  # another run may find media, or an encoder, repaired
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
    + ("encode_failed", "transform_failed", "uncountable")
)
"""Why rows are rejected that may be usable in another run."""


class SourceSums(msgspec.Struct, frozen=True):
    """Sums over one source's rows."""

    num_samples: int = 0
    """Rows, rejected ones too."""
    num_tokens: int = 0
    num_label_tokens: int = 0
    """Of the usable rows that know theirs."""
    num_unknown: int = 0
    """Usable rows that do not know their label tokens."""
    methods: dict[str, int] = {}
    """Usable rows by the way in which they were counted."""
    rejected: dict[str, int] = {}
    """Rejected rows by reason."""

    def plus(self, other: SourceSums) -> SourceSums:
        """The rows of both."""
        return SourceSums(
            self.num_samples + other.num_samples,
            self.num_tokens + other.num_tokens,
            self.num_label_tokens + other.num_label_tokens,
            self.num_unknown + other.num_unknown,
            _added(self.methods, other.methods),
            _added(self.rejected, other.rejected),
        )

    def to_json(self) -> dict[str, Any]:
        """The sums as a manifest's source has them."""
        return {
            "num_samples": self.num_samples,
            "num_rejected": sum(self.rejected.values()),
            "rejected": self.rejected,
            "num_tokens": self.num_tokens,
            "num_label_tokens": None if self.num_unknown else self.num_label_tokens,
        }


def _added(ones: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(ones) + Counter(others)).items()))


class Place(NamedTuple):
    """Where a range stands in a table, and what its rows have of that."""

    first_id: int
    """sample_id of its first row."""
    shard: int
    source: str
    name: str
    """What keys of records without a name of their own begin with."""
    uri: str


class RangeRows(NamedTuple):
    """The rows of one range of a shard, as a note has them."""

    key: str | None
    """Digest of all that decides them; None where nobody can tell."""
    range: RecordRange
    place: Place
    rejected: bool
    """Whether some are: what is said of these names their place."""
    columns: dict[str, str]
    """Of the records, and what each is used as."""
    references: References
    """What the records refer to; without a digest, too, where another run may count otherwise."""


class Part(msgspec.Struct, frozen=True):
    """A part: its file, sums over its rows, and what these are."""

    file: File
    num_media: int
    sources: dict[str, SourceSums]
    ranges: tuple[RangeRows, ...]
    note: File | None = None
    """That says all this; None in itself."""


PARTS = "part", "parquet"
"""How the names of parts begin and end."""
NOTES = "note", "json.zst"
"""The same of their notes: JSON, compressed by Zstandard."""


# -- written ---------------------------------------------------------------------------------------


def write_part(
    folder: str, number: int, table: pa.Table, ranges: Sequence[RangeRows], temporary: str
) -> Part:
    """Write a part, by way of `begin_part`'s file, and then its note.

    Args:
        folder: where they belong.
        table: of schema `LENGTHS_WITH_SPANS`; a part without spans leaves their column out.
        ranges: what its rows are, in order; which of them are rejected is filled in.

    Raises:
        OSError: it cannot be written.
    """
    table = _with_what_is_known(table)
    with files.naming(temporary), parquet.open_writer(temporary, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
    part = Part(
        file=_put(temporary, folder, PARTS, number, table.num_rows),
        num_media=pc.sum(pc.list_value_length(table.column("media"))).as_py() or 0,
        sources=_source_sums(table),
        ranges=tuple(_with_rejected(ranges, table["reason"])),
    )
    temporary = begin_part(folder, number)
    with files.naming(temporary), pa.output_stream(temporary, compression="zstd") as stream:
        stream.write(msgspec.json.encode(part))
    note = _put(temporary, folder, NOTES, number, len(ranges))
    # What records refer to may be much, and is in the note.
    bare = tuple(rows._replace(references=NOTHING) for rows in ranges)
    return structs.replace(part, note=note, ranges=bare)


def begin_part(folder: str, number: int) -> str:
    """Return the path of a new temporary file, which says that the part is being counted.

    No two processes share one: a worker that outlives its killed parent for a moment does not write
    into the next run's.
    """
    name = f".part-{number:05d}.{os.getpid()}-{secrets.token_hex(4)}"
    path = os.path.join(folder, name)
    with open(path, "wb"):
        return path


def is_begun(folder: str, number: int) -> bool:
    """Return whether a part is being counted, or was when its process died."""
    start = f".part-{number:05d}."
    return any(name.startswith(start) for name in os.listdir(folder))


def _put(temporary: str, folder: str, kind: tuple[str, str], number: int, rows: int) -> File:
    """Give a file that is written its name, and return what a manifest says of it.

    The name has a digest in it: the files of two tables can lie side by side.
    """
    files.fsync_path(temporary)
    nbytes, sha256 = os.path.getsize(temporary), file_digest(temporary)
    name = f"{kind[0]}-{number:05d}-{sha256[:16]}.{kind[1]}"
    os.replace(temporary, os.path.join(folder, name))
    files.fsync_path(folder)
    return File(path=name, rows=rows, bytes=nbytes, sha256=sha256)


def _with_what_is_known(table: pa.Table) -> pa.Table:
    """`table` without the spans of labels if it has none."""
    spans = schema.LENGTHS_WITH_SPANS.names[-1]
    known = spans in table.column_names and pc.any(table[spans].is_valid()).as_py()
    return table.select((schema.LENGTHS_WITH_SPANS if known else schema.LENGTHS).names)


def _with_rejected(ranges: Sequence[RangeRows], reasons: pa.ChunkedArray) -> Iterator[RangeRows]:
    """Yield `ranges` with whether rows are rejected: whose reason may pass is known by nothing."""
    first = 0
    for rows in ranges:
        why = {*pc.unique(reasons.slice(first, rows.range.num_records)).to_pylist()} - {None}
        if not why.isdisjoint(PASSING_REASONS):
            rows = rows._replace(references=rows.references._replace(digest=None))
        yield rows._replace(rejected=bool(why))
        first += rows.range.num_records


def _source_sums(table: pa.Table) -> dict[str, SourceSums]:
    keys = ["source", "method", "reason"]
    columns = table.select([*keys, "length", "label_tokens"])
    labels = [("label_tokens", "sum"), ("label_tokens", "count")]
    sums = [("length", "sum"), *labels, ([], "count_all")]
    by_source: dict[str, SourceSums] = {}
    for row in columns.group_by(keys).aggregate(sums).to_pylist():
        number = row["count_all"]
        if row["reason"] is None:
            unknown = number - row["label_tokens_count"]
            labels_of_row, methods = row["label_tokens_sum"] or 0, {row["method"]: number}
            own = SourceSums(number, row["length_sum"], labels_of_row, unknown, methods)
        else:
            own = SourceSums(number, rejected={row["reason"]: number})
        by_source[row["source"]] = by_source.get(row["source"], SourceSums()).plus(own)
    return by_source


# -- taken over ------------------------------------------------------------------------------------


class OldRows(NamedTuple):
    """The rows of a range in a part that is there."""

    note: StoredFile
    number: int
    """Of the range in its note."""
    file: StoredFile
    """The part."""
    first: int
    """Row of the part that they begin with."""
    rows: RangeRows
    """Without columns and what the records refer to, which may be much."""
    is_trusted: bool
    """Whether they are of a run that was killed: what nobody can tell is taken for what it was."""

    def distance(self, place: Place) -> int:
        """Return how far they are from being those of the range at `place` as they stand."""
        return (self.rows.place != place) + (self.rows.place.uri != place.uri)

    def serve(self, place: Place, root: MediaRoot) -> bool:
        """Return whether a count of the range at `place` would make these rows now."""
        if self.rows.rejected and self.rows.place.uri != place.uri:
            return False
        try:
            references = read_note(self.note).ranges[self.number].references
        except FormatError:
            return False
        if references.digest is None:
            return self.is_trusted and self.rows.place.uri == place.uri
        return references.are_unchanged(root)


@lru_cache(maxsize=2)
def read_note(note: StoredFile) -> Part:
    """Return what a note says of the part beside it.

    Raises:
        FormatError: it has another content than its manifest says, or none.
        OSError: a store cannot be asked.
    """
    copy = local_copy(note)
    try:
        with pa.input_stream(copy, compression="zstd") as stream:
            return msgspec.json.decode(stream.read(), type=Part)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        refuse_open_files(error)
        raise FormatError(f"{note.path} is not a note of a part ({error})") from None


class OldParts:
    """Rows that are there, by key.

    Attributes:
        damaged: what is wrong with parts that are of no use, a sentence each.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[OldRows]] = defaultdict(list)
        self._states: dict[StoredFile, str | None] = {}
        self.damaged: list[str] = []

    def add(self, notes: Iterable[StoredFile], is_trusted: bool = False) -> None:
        """Take in what notes say.

        Args:
            notes: in the order of their parts.
            is_trusted: they are a killed run's.

        Raises:
            OSError: a store cannot be asked.
        """
        for note in notes:
            try:
                part = read_note(note)
            except FormatError as error:
                self.damaged.append(str(error).partition(":")[0])
                continue
            file, first = _beside(note, part), 0
            for number, rows in enumerate(part.ranges):
                rows = rows._replace(references=NOTHING, columns={})  # which the note has
                if rows.key is not None:
                    old = OldRows(note, number, file, first, rows, is_trusted)
                    self._rows[rows.key].append(old)
                first += rows.range.num_records

    def find(self, key: str | None, place: Place, root: MediaRoot) -> OldRows | None:
        """Return the rows of a range, those that stand in its very place before others."""
        rows = self._rows.get(key, []) if key is not None else []
        nearest = sorted(rows, key=lambda old: old.distance(place))
        return next(
            (old for old in nearest if self._is_whole(old) and old.serve(place, root)), None
        )

    def _is_whole(self, old: OldRows) -> bool:
        for file in (old.file,):
            if file not in self._states:
                wrong = self._states[file] = _damage(file)
                self.damaged += [] if wrong is None else [wrong]
        return not self._states[old.file]


def _damage(file: StoredFile) -> str | None:
    try:
        local_copy(file)
    except FormatError as error:
        return str(error).partition(":")[0]
    return None


def copy_part(
    folder: str, number: int, rows: Sequence[tuple[OldRows | None, Place]]
) -> Part | None:
    """Copy the part that holds the very rows of some ranges, in their places, and no others.

    Raises:
        FormatError: it is damaged.
        OSError: it cannot be read or written.
    """
    notes = {None if old is None or old.rows.place != place else old.note for old, place in rows}
    note = notes.pop() if len(notes) == 1 else None
    if note is None or len((part := read_note(note)).ranges) != len(rows):
        return None
    copies = []
    for file, kind in ((_beside(note, part), PARTS), (note, NOTES)):
        temporary = begin_part(folder, number)
        shutil.copyfile(local_copy(file), temporary)
        copies.append(_put(temporary, folder, kind, number, part.file.rows))
    noted = structs.replace(copies[-1], rows=len(rows))
    bare = tuple(each._replace(references=NOTHING) for each in part.ranges)
    return structs.replace(part, file=copies[0], note=noted, ranges=bare)


def _beside(note: StoredFile, part: Part) -> StoredFile:
    """Return the file of the part that a note describes."""
    return part.file.within(note.path.rpartition("/")[0])


@lru_cache(maxsize=1)
def _read_part(file: StoredFile) -> pa.Table:
    with pq.ParquetFile(local_copy(file), page_checksum_verification=True) as stored:
        return conform(stored.read(use_threads=False), schema.LENGTHS_WITH_SPANS)


def taken_rows(old: OldRows, place: Place) -> tuple[pa.Table, RangeRows]:
    """Return the rows of a range as a count of it at `place` would make them, and what they are.

    Raises:
        FormatError: a part is damaged.
        OSError: it cannot be read.
    """
    noted = read_note(old.note).ranges[old.number]
    rows = _read_part(old.file).slice(old.first, noted.range.num_records)
    if noted.place == place:
        return rows, noted
    num = rows.num_rows
    made, now = (
        pc.binary_join_element_wise(f"{name}#", rows.column("row").cast(pa.string()), "")
        for name in (noted.place.name, place.name)
    )
    first = place.first_id
    columns = {
        "sample_id": as_arrow(np.arange(first, first + num, dtype=np.int64)),
        "shard": pa.repeat(pa.scalar(place.shard, pa.int32()), num),
        "source": pa.repeat(pa.scalar(place.source, pa.string()), num),
        "key": pc.if_else(pc.equal(rows.column("key"), made), now, rows.column("key")),
    }
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, schema.LENGTHS_WITH_SPANS.field(name), values)
    return rows, noted._replace(place=place)
