"""Reading lengths, our own table or any Parquet that has a `length`, a run of rows at a time."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import ColumnDigest, canonical_json, digest
from packidx.errors import FormatError, MismatchError, SourceError
from packidx.format.lengths import HELP, KnownTable, LengthsManifest, known_table
from packidx.format.manifest import Encoder, Shard, as_planned
from packidx.format.schema import LENGTHS_WITH_SPANS, METHODS
from packidx.io import storage, urls
from packidx.io.copies import StoredFile, local_copies, local_copy
from packidx.io.files import refuse_open_files
from packidx.lengths.rows import LengthsRows, Places, strongest_first, typed

_RUN = 1 << 22  # rows of a bare table that are digested at a time


@dataclass(eq=False)
class Lengths:
    """A lengths table, its rows in ascending order of `sample_id`, read in runs.

    Attributes:
        uri: the path as the user gave it.
        files: of the table.
        footers: of the files.
        names: known and other columns that each of them has.
        groups: row groups in the order of their samples; None where they do not say it.
        manifest: the lengths manifest, None for a bare table.
        is_pattern: whether the path is a pattern, which other files may match by now.
    """

    uri: str
    files: list[StoredFile]
    footers: list[pq.FileMetaData]
    names: list[set[str]]
    groups: list[RowGroup] | None
    manifest: LengthsManifest | None
    is_pattern: bool = False
    _sorted: LengthsRows | None = None

    @classmethod
    def opened(cls, uri: str, table: KnownTable) -> Lengths:
        """The table, whose files' footers are read and checked."""
        manifest, files, is_pattern = table
        footers = storage.overlapped(read_footer, files)
        names = [set(footer.schema.to_arrow_schema().names) for footer in footers]
        for file, own in zip(files, names, strict=True):
            if "length" not in own:
                where = "" if uri == file.path else f": {os.path.basename(file.path)} has none"
                raise FormatError(f"{uri} has no column `length`{where}; {HELP}")
        num_samples = sum(footer.num_rows for footer in footers)
        if not num_samples:
            raise SourceError(f"{uri} holds no usable sample (no row): nothing to pack")
        if manifest is not None and manifest.num_samples != num_samples:
            raise MismatchError(
                f"{uri} has {num_samples} rows, its manifest says "
                f"{manifest.num_samples}: run `packidx estimate` again"
            )
        groups = groups_in_order(footers, any("sample_id" in own for own in names))
        return cls(uri, files, footers, names, groups, manifest, is_pattern)

    @cached_property
    def columns(self) -> list[str]:
        """The known columns that are present."""
        present = set().union(*self.names)
        return [name for name in LENGTHS_WITH_SPANS.names if name in present]

    @cached_property
    def _places(self) -> Places:
        return Places(self)

    @cached_property
    def num_samples(self) -> int:
        """Rows."""
        return sum(footer.num_rows for footer in self.footers)

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> LengthsRows:
        """Rows start .. stop - 1 in order of `sample_id`, of all known columns or of some.

        Raises:
            FormatError: a value does not fit its column, or a sample_id is there twice.
        """
        wanted = self.columns if columns is None else [n for n in self.columns if n in columns]
        if self.groups is None:
            if self._sorted is None:
                self._sorted = self._read_unordered()
            return self._sorted.slice(start, stop, wanted)
        if "sample_id" in self.columns and "sample_id" not in wanted:
            wanted = ["sample_id", *wanted]
        start_of = attrgetter("start")
        first = max(0, bisect_right(self.groups, start, key=start_of) - 1)
        groups = self.groups[first : bisect_left(self.groups, stop, key=start_of)]
        runs = [list(run) for _, run in groupby(groups, key=attrgetter("file"))]
        skipped = start - groups[0].start if groups else 0
        frame = self._frame(runs, wanted).slice(skipped, stop - start)
        rows = LengthsRows(self.uri, start, _typed(frame, self.uri), self._places)
        if "sample_id" in wanted:
            rows.check_ids()
        return rows

    def fingerprint(self) -> str:
        """Hex digest of the logical content, whatever order the rows were stored in."""
        if self.manifest is not None:
            return self.manifest.fingerprint
        digests: dict[str, ColumnDigest] = {}
        for start in range(0, self.num_samples, _RUN):
            rows = self.read(start, min(start + _RUN, self.num_samples))
            for name in self.columns:
                column = rows.arrow(name)  # in the schema's type, whatever its writer chose
                digests.setdefault(name, ColumnDigest(str(column.type))).update(column)
        parts = [[name, digests[name].hexdigest()] for name in self.columns]
        return digest(canonical_json(parts))

    @cached_property
    def num_media(self) -> int:
        """Entries of all lists in the column `media`, an empty one counted as one; read nowhere but
        in the files' footers."""
        groups = (
            footer.row_group(n) for footer in self.footers for n in range(footer.num_row_groups)
        )
        columns = (group.column(n) for group in groups for n in range(group.num_columns))
        return sum(
            column.num_values
            for column in columns
            if column.path_in_schema.startswith("media.") and column.path_in_schema.endswith(".at")
        )

    @cached_property
    def methods(self) -> dict[str, int]:
        """Usable rows by the method that counted them, strongest first; empty if nobody says."""
        if self.manifest is not None:
            counts = self.manifest.methods
        elif "method" in self.columns:
            rows = self.read(0, self.num_samples, ["method", "status"])
            usable = rows.frame.filter(pl.Series(rows.is_ok()))
            counts = dict(usable.get_column("method").drop_nulls().value_counts().rows())
        else:
            return {}
        return strongest_first(counts, self.uri)

    @property
    def weakest_method(self) -> str:
        """The least exact of the methods that counted the usable rows."""
        return max(self.methods, key=METHODS.index, default="exact")

    @property
    def encoder(self) -> Encoder | None:
        """Return what builds the samples, where it is known."""
        return None if self.manifest is None else self.manifest.encoder

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The manifest's shards, without what only counting needs; empty for a bare table."""
        return () if self.manifest is None else tuple(map(as_planned, self.manifest.shards))

    def _frame(self, runs: list[list[RowGroup]], columns: list[str]) -> pl.DataFrame:
        """Rows of row groups, those of each file in ascending order of their ids.

        Args:
            runs: row groups of one file each.
        """
        frames, copies = [], local_copies([self.files[run[0].file] for run in runs])
        for copy, run in zip(copies, runs, strict=True):
            file = run[0].file
            wanted = [name for name in columns if name in self.names[file]]
            with readable(self.uri):
                opened = pq.ParquetFile(
                    copy,
                    metadata=self.footers[file],
                    memory_map=True,
                    page_checksum_verification=True,
                )
                table = opened.read_row_groups([group.number for group in run], wanted)
            if "sample_id" in wanted and not table["sample_id"].null_count:
                ids = table["sample_id"].to_numpy()
                if not (ids[1:] > ids[:-1]).all():
                    table = table.take(np.argsort(ids, kind="stable"))
            frames.append(pl.DataFrame(pl.from_arrow(table)))
        frame = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
        return frame.select(name for name in columns if name in frame.columns)

    def _read_unordered(self) -> LengthsRows:
        """The whole table, sorted: its row groups say nothing of the order of its samples."""
        runs = [
            [RowGroup(file, number, 0) for number in range(footer.num_row_groups)]
            for file, footer in enumerate(self.footers)
        ]
        frame = _typed(self._frame([run for run in runs if run], self.columns), self.uri)
        ids = frame.get_column("sample_id")
        if ids.null_count():
            raise FormatError(
                f"{self.uri}: {ids.null_count()} sample_id are null: give every sample its own"
            )
        rows = LengthsRows(self.uri, 0, frame.sort("sample_id"), self._places)
        rows.check_ids()
        return rows


def read_lengths(uri: str) -> Lengths:
    """Open a lengths table, a folder or glob of Parquet files, or one Parquet file.

    Raises:
        SourceError: nothing is there, or it is not a Parquet file.
        FormatError: no usable `length` column, duplicate sample ids, a newer version; a part is not
            the one that the manifest names.
        OSError: a store cannot be asked.
    """
    uri = urls.local_path(uri)
    names = [] if urls.is_url(uri) else storage.names(uri)
    is_packed = {"index", "lengths"} <= {*names}  # by `packidx pack`
    if is_packed and not any(name.endswith((".parquet", "manifest.json")) for name in names):
        uri = urls.join(uri, "lengths")
    return Lengths.opened(uri, known_table(uri))


def _typed(frame: pl.DataFrame, uri: str) -> pl.DataFrame:
    return frame.with_columns(typed(column, uri) for column in frame.get_columns())


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: where it lies, and the row of the table it begins with."""

    file: int
    number: int
    start: int


def groups_in_order(footers: list[pq.FileMetaData], have_ids: bool) -> list[RowGroup] | None:
    """The row groups of a table's files; None where their sample ids overlap or are unknown.

    Args:
        have_ids: whether the table has sample ids, which then give the order.
    """
    stored = [
        (number, group, footer.row_group(group))
        for number, footer in enumerate(footers)
        for group in range(footer.num_row_groups)
        if footer.row_group(group).num_rows
    ]
    if have_ids:
        ranges = [_id_range(meta) for _, _, meta in stored]
        known = [ids for ids in ranges if ids is not None]
        if len(known) < len(ranges):
            return None
        order = sorted(range(len(stored)), key=lambda at: (known[at], stored[at][:2]))
        if any(known[a][1] >= known[b][0] for a, b in pairwise(order)):
            return None
        stored = [stored[at] for at in order]
    groups, start = [], 0
    for number, group, meta in stored:
        groups.append(RowGroup(number, group, start))
        start += meta.num_rows
    return groups


def read_footer(file: StoredFile) -> pq.FileMetaData:
    """The footer of a file, which has the content that its manifest states.

    Raises:
        FormatError: it has another one.
        SourceError: it is not a Parquet file.
    """
    copy = local_copy(file)  # compared first: a damaged footer may end the process in Arrow
    with readable(file.path):
        return pq.read_metadata(copy)


@contextlib.contextmanager
def readable(uri: str) -> Iterator[None]:
    """Raise what Arrow says of a file that is damaged as a SourceError."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        refuse_open_files(error)
        reason = (str(error).splitlines() or [""])[0]
        raise SourceError(f"{uri} cannot be read as Parquet ({reason}); {HELP}") from None


def _id_range(group: pq.RowGroupMetaData) -> tuple[int, int] | None:
    """Lowest and highest sample_id of a row group, where its statistics have them."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "sample_id":
            seen = column.statistics
            if seen is None or not seen.has_min_max or seen.null_count:
                return None
            low, high = seen.min, seen.max
            return (low, high) if isinstance(low, int) and isinstance(high, int) else None
    return None
