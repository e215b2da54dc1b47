"""Reading lengths, our own table or any Parquet that has a `length`, a run of rows at a time."""

from __future__ import annotations

import contextlib
import os
import posixpath
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.arrays import Bools, Int32s, Int64s, Ints, Uint64s
from packidx.digests import ColumnDigest, canonical_json, digest_parts
from packidx.errors import FormatError, MismatchError, SourceError
from packidx.format.lengths import HELP, LengthsManifest, known_table
from packidx.format.manifest import Shard, as_planned
from packidx.format.parquet import as_arrow
from packidx.format.schema import LENGTHS, LENGTHS_WITH_SPANS, MEDIA_COUNTERS, METHODS
from packidx.hashing import hash_numbered, hash_strings
from packidx.io import storage, urls
from packidx.io.cache import StoredFile, local_copies, local_copy
from packidx.io.files import refuse_open_files

_RUN = 1 << 22  # rows of a bare table that are digested, or counted by source, at a time


@dataclass(frozen=True, eq=False)
class LengthsRows:
    """Rows of a lengths table in ascending order of `sample_id`.

    Attributes:
        table: whose rows they are.
        start: number of the first row in the table.
        frame: the columns that are present and were asked for.
    """

    table: Lengths
    start: int
    frame: pl.DataFrame

    @property
    def uri(self) -> str:
        """Fingerprint of the table."""
        return self.table.uri

    @property
    def num_rows(self) -> int:
        return self.frame.height

    @cached_property
    def sample_id(self) -> Int64s:
        """int64 [n]; the row number where the table has no ids of its own."""
        if "sample_id" in self.frame.columns:
            return self.frame.get_column("sample_id").to_numpy()
        return np.arange(self.start, self.start + self.num_rows, dtype=np.int64)

    @cached_property
    def length(self) -> Int32s:
        """int32 [n], tokens; 0 where the count is unknown or negative."""
        column = self.frame.get_column("length")
        values: Int32s = column.cast(pl.Int32).fill_null(0).to_numpy()
        return values if values.min(initial=0) >= 0 else np.maximum(values, 0)

    def check_ids(self) -> None:
        """Raise a FormatError unless every sample id is above the one before it."""
        ids = self.sample_id
        again = np.flatnonzero(ids[1:] <= ids[:-1])
        if len(again):
            raise FormatError(
                f"{self.uri}: sample_id {ids[again[0]]} stands there more than once: "
                "make them unique"
            )

    def may_hold_media(self, rows: Int64s) -> Bools:
        """bool [n]: True unless each of `rows` is known to hold no medium.

        A row has none if its `media` are an empty list, or a counter of each kind is 0; null is
        unknown. A table that has neither `media` nor the columns of a kind has none of that kind.
        """
        has, unknown = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        lists = self.lists("media", rows)
        for names in MEDIA_COUNTERS:
            present = [name for name in names if name in self.frame.columns]
            unstated = np.full(len(rows), bool(present) or lists is not None and len(names) > 1)
            for name in present:
                values, null = self.ints(name, rows)
                has |= values > 0
                unstated &= False if null is None else null
            unknown |= unstated
        if lists is not None:
            has |= lists.value_lengths().fill_null(0).to_numpy() > 0
            unknown &= lists.is_null().to_numpy(zero_copy_only=False)
        return has | unknown

    def lists(self, name: str, rows: Ints | None = None) -> pa.LargeListArray | None:
        """Column `name` of lists, all of it or at `rows`; None if the table has none."""
        if name not in self.frame.columns:
            return None
        column = self.frame.get_column(name)
        if column.dtype == pl.Null:
            return None
        if rows is not None:
            column = column.gather(pl.Series(rows.astype(np.uint32, copy=False)))
        return column.to_arrow(compat_level=pl.CompatLevel.newest())

    def is_ok(self) -> Bools:
        """bool [n]: the row was not rejected."""
        if "status" not in self.frame.columns:
            return np.ones(self.num_rows, bool)
        return (self.frame.get_column("status") == "ok").fill_null(False).to_numpy()

    def slice(self, start: int, stop: int, columns: Sequence[str]) -> LengthsRows:
        """Rows start .. stop - 1 of these rows and some of their columns."""
        frame = self.frame.select(n for n in self.frame.columns if n in columns or n == "sample_id")
        return LengthsRows(self.table, self.start + start, frame.slice(start, stop - start))

    def ints(self, name: str, rows: Ints | None = None) -> tuple[Int64s, Bools | None]:
        """Column `name`, all of it or at `rows`, as int64 with 0 for null, and where that is."""
        size = self.num_rows if rows is None else len(rows)
        if name not in self.frame.columns:
            return np.zeros(size, np.int64), np.ones(size, bool)
        column = self.frame.get_column(name)
        null = column.is_null().to_numpy() if column.null_count() else None
        values = column.cast(pl.Int64).fill_null(0).to_numpy()
        if rows is None:
            return values, null
        return values[rows], None if null is None else null[rows]

    def arrow(self, name: str, rows: Ints | None = None) -> pa.Array:
        """Column `name`, all of it or at `rows`, in the schema's type; nulls if it is absent."""
        kind = LENGTHS_WITH_SPANS.field(name).type
        if name == "sample_id":
            return as_arrow(self.sample_id if rows is None else self.sample_id[rows])
        if name not in self.frame.columns:
            return pa.nulls(self.num_rows if rows is None else len(rows), kind)
        column = self.frame.get_column(name)
        if rows is not None:
            column = column.gather(pl.Series(rows.astype(np.uint32, copy=False)))
        return column.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(kind)

    def draws(self) -> Uint64s:
        """uint64 [n], the number that each row is drawn by (FORMAT.md)."""
        if self.table.shards:
            shard, row = (self.ints(name)[0] for name in ("shard", "row"))
            salts = hash_numbered([shard.source for shard in self.table.shards])
            return salts.take(shard, mode="clip") ^ row.view(np.uint64)
        place = np.arange(self.start, self.start + self.num_rows)
        salts = np.zeros(self.num_rows, np.uint64)
        if "source" in self.frame.columns:
            source = self.frame.get_column("source")
            place = self.frame.select(pl.int_range(pl.len()).over("source")).to_series().to_numpy()
            place = place + self.table.rows_before(self.start, source)
            salts = hash_strings(self.arrow("source").dictionary_encode())
        return salts ^ place.view(np.uint64)

    def own_keys(self) -> pa.Array | None:
        """The keys, null where a record has no name of its own: a key that is made of its shard's
        name changes with the other shards' names."""
        if "key" not in self.frame.columns:
            return None
        keys = self.arrow("key")
        if not self.table.shards:
            return keys
        shard, row = (pl.Series(self.ints(name)[0]) for name in ("shard", "row"))
        names = pl.Series([f"{posixpath.basename(shard.uri)}#" for shard in self.table.shards])
        made = names.gather(shard.clip(0, len(names) - 1)) + row.cast(pl.String)
        ends = pl.col("key").str.ends_with(pl.lit(made)).fill_null(True)
        is_made = self.frame.select(ends).to_series()
        return pc.if_else(is_made.to_arrow(), pa.scalar(None, keys.type), keys)


@dataclass(eq=False)
class Lengths:
    """A lengths table, its rows in ascending order of `sample_id`, read in runs.

    Attributes:
        uri: the path as the user gave it.
        files: of the table.
        footers: of the files.
        names: known and other columns that each of them has.
        groups: row groups in the order of their samples; None if they do not say it.
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
    _counted: int = 0
    _before: Counter[str | None] = field(default_factory=Counter)

    @cached_property
    def columns(self) -> list[str]:
        """The known columns that are present."""
        present = set().union(*self.names)
        return [name for name in LENGTHS_WITH_SPANS.names if name in present]

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
        skipped = start - groups[0].start if groups else 0
        frame = self._read_frame(groups, wanted).slice(skipped, stop - start)
        rows = LengthsRows(self, start, frame)
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
        return digest_parts(canonical_json(parts))

    @cached_property
    def num_media(self) -> int:
        """About how many entries the lists in the column `media` have: one of each sample, or as
        many as the manifest states."""
        if "media" not in self.columns:
            return 0
        return max(self.num_samples, self.manifest.num_media if self.manifest else 0)

    @cached_property
    def methods(self) -> dict[str, int]:
        """Usable rows by the method that counted them, strongest first; empty if unknown."""
        if self.manifest is not None:
            counts = self.manifest.methods
        elif "method" in self.columns:
            rows = self.read(0, self.num_samples, ["method", "status"])
            usable = rows.frame.filter(pl.Series(rows.is_ok()))
            counts = dict(usable.get_column("method").drop_nulls().value_counts().rows())
        else:
            return {}
        return strongest_first(counts, self.uri)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The manifest's shards, without what only counting needs; empty for a bare table."""
        return () if self.manifest is None else tuple(map(as_planned, self.manifest.shards))

    def rows_before(self, start: int, source: pl.Series) -> Int64s:
        """int64 [n]: how many rows before row `start` have the source of each row."""
        if start < self._counted:
            self._counted, self._before = 0, Counter()
        while self._counted < start:
            stop = min(start, self._counted + _RUN)
            rows = self.read(self._counted, stop, ["source"])
            self._before.update(dict(rows.frame.get_column("source").value_counts().rows()))
            self._counted = stop
        before = np.zeros(len(source), np.int64)
        for name, number in self._before.items():
            before[source.eq_missing(name).to_numpy()] = number
        return before

    def _read_frame(self, groups: Sequence[RowGroup], columns: list[str]) -> pl.DataFrame:
        """Rows of row groups, those of each file in ascending order of their ids."""
        runs = [list(run) for _, run in groupby(groups, key=attrgetter("file"))]
        frames, copies = [], local_copies([self.files[run[0].file] for run in runs])
        for copy, run in zip(copies, runs, strict=True):
            file = run[0].file
            wanted = [name for name in columns if name in self.names[file]]
            with name_read_errors(self.uri):
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
        known = (frame.get_column(name) for name in columns if name in frame.columns)
        return frame.select(cast_column(column, self.uri) for column in known)

    def _read_unordered(self) -> LengthsRows:
        """The whole table, sorted: its row groups say nothing of the order of its samples."""
        groups = [
            RowGroup(file, number, 0)
            for file, footer in enumerate(self.footers)
            for number in range(footer.num_row_groups)
        ]
        frame = self._read_frame(groups, self.columns)
        ids = frame.get_column("sample_id")
        if ids.null_count():
            raise FormatError(
                f"{self.uri}: {ids.null_count()} sample_id are null: give every sample its own"
            )
        rows = LengthsRows(self, 0, frame.sort("sample_id"))
        rows.check_ids()
        return rows


def strongest_first(counts: Mapping[str, int], uri: str) -> dict[str, int]:
    """Rows by the method that counted them, strongest first; a FormatError names another method."""
    unknown = sorted(counts.keys() - set(METHODS))
    if unknown:
        raise FormatError(f"{uri}: method is {unknown[0]!r}, not one of {METHODS}")
    return {name: counts[name] for name in METHODS if counts.get(name)}


# Counters that are added up, and more than any sample has of them: sums of a plan stay exact.
_COUNTS = {
    name
    for name in LENGTHS.names
    if name.endswith("_tokens") or name in ("num_images", "num_videos")
} | {"vision_patches", "vision_cost"}
_MOST = 1 << 48


def cast_column(column: pl.Series, uri: str) -> pl.Series:
    """`column` if it is what the schema says, else a FormatError that names it."""
    name, kind = column.name, column.dtype
    want = LENGTHS_WITH_SPANS.field(name).type
    where = f"{uri}: column `{name}`"
    if pa.types.is_integer(want):
        if not (kind.is_integer() or kind == pl.Null):
            raise FormatError(f"{where} is {kind}, not integer: cast it first")
        own, limit = (pl.Int32 if want.bit_width == 32 else pl.Int64), 1 << (want.bit_width - 1)
        if kind == own and name not in _COUNTS:
            return column
        for value in (column.min(), column.max()):
            if isinstance(value, int) and not -limit <= value < limit:
                raise FormatError(f"{where} holds {value}, which does not fit {want}: correct it")
            if isinstance(value, int) and name in _COUNTS and not 0 <= value <= _MOST:
                raise FormatError(f"{where} holds {value}, not 0 to {_MOST}: correct it")
        return column.cast(own)
    if pa.types.is_string(want):
        if kind not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            raise FormatError(f"{where} is {kind}, not text: cast it first")
        return column.cast(pl.String)
    names = {field.name for field in want.value_type}
    inner = kind.inner if isinstance(kind, pl.List) else None
    is_ours = isinstance(inner, pl.Struct) and {field.name for field in inner.fields} == names
    if kind != pl.Null and not is_ours:
        raise FormatError(
            f"{where} is {kind}, not a list of structs as FORMAT.md has it: leave it out"
        )
    return column


def read_lengths(uri: str) -> Lengths:
    """Open a lengths table, a folder or glob of Parquet files, or one Parquet file.

    Raises:
        SourceError: nothing is there, or it is not a Parquet file.
        FormatError: no usable `length` column, duplicate sample ids, a newer version; a part is not
            the one that the manifest names.
        OSError: a store cannot be asked.
    """
    uri = urls.local_path(uri)
    names = [] if urls.is_url(uri) else storage.list_names(uri)
    is_packed = {"index", "lengths"} <= {*names}  # by `packidx pack`
    if is_packed and not any(name.endswith((".parquet", "manifest.json")) for name in names):
        uri = urls.join_path(uri, "lengths")
    manifest, files, is_pattern = known_table(uri)
    footers = storage.map_overlapped(read_footer, files)
    columns = [set(footer.schema.to_arrow_schema().names) for footer in footers]
    for file, own in zip(files, columns, strict=True):
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
    groups = groups_in_order(footers, any("sample_id" in own for own in columns))
    return Lengths(uri, files, footers, columns, groups, manifest, is_pattern)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: where it lies, and the row of the table it begins with."""

    file: int
    number: int
    start: int


def groups_in_order(footers: list[pq.FileMetaData], have_ids: bool) -> list[RowGroup] | None:
    """The row groups of a table's files; None if their sample ids overlap or are unknown.

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
    """Read the footer of a file; raise a FormatError if its content is not what its manifest
    states, a SourceError if it is not Parquet."""
    copy = local_copy(file)  # compared first: a damaged footer may end the process in Arrow
    with name_read_errors(file.path):
        return pq.read_metadata(copy)


@contextlib.contextmanager
def name_read_errors(uri: str) -> Iterator[None]:
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
