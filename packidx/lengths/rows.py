"""A run of a lengths table's rows in memory, its columns in the schema's types."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Bools, Int32s, Int64s, Ints, Uint64s
from packidx.errors import FormatError
from packidx.format.parquet import as_arrow
from packidx.format.schema import LENGTHS, LENGTHS_WITH_SPANS, MEDIA_COUNTERS, METHODS
from packidx.hashing import hash_numbered, hash_strings

if TYPE_CHECKING:
    from packidx.format.manifest import Shard
    from packidx.lengths.table import Lengths


@dataclass(frozen=True, eq=False)
class LengthsRows:
    """Rows of a lengths table in ascending order of `sample_id`.

    Attributes:
        uri: of the table.
        start: number of the first row in the table.
        frame: the columns that are present and were asked for.
        places: where the table's samples stand in their sources.
    """

    uri: str
    start: int
    frame: pl.DataFrame
    places: Places

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
        """Column `name` of lists, all of it or at `rows`; None where the table has none."""
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
        return LengthsRows(
            self.uri, self.start + start, frame.slice(start, stop - start), self.places
        )

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

    def arrow(self, name: str) -> pa.Array:
        """Column `name` as Arrow has it, one chunk."""
        column = self.frame.get_column(name).to_arrow(compat_level=pl.CompatLevel.oldest())
        kind = LENGTHS_WITH_SPANS.field(name).type
        return column if pa.types.is_integer(kind) else column.cast(kind)

    def take(self, name: str, rows: Ints) -> pa.Array:
        """Column `name` at `rows` in the type the schema gives it; nulls if it is absent."""
        kind = LENGTHS_WITH_SPANS.field(name).type
        if name == "sample_id":
            if name not in self.frame.columns:
                return as_arrow(np.add(rows, self.start, dtype=np.int64))
            return as_arrow(self.sample_id[rows])
        if name not in self.frame.columns:
            return pa.nulls(len(rows), kind)
        taken = self.frame.get_column(name).gather(pl.Series(rows.astype(np.uint32, copy=False)))
        return taken.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(kind)


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


def typed(column: pl.Series, uri: str) -> pl.Series:
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


_RUN = 1 << 22  # rows of a bare table whose sources are counted at a time


class Places:
    """The places of a table's samples in their sources."""

    def __init__(self, table: Lengths) -> None:
        self._table = table
        self._counted, self._before = 0, Counter[str | None]()

    def draws(self, rows: LengthsRows) -> Uint64s:
        """uint64 [n], the number that each of `rows` is drawn by."""
        if self._shards:
            shard, row = (rows.ints(name)[0] for name in ("shard", "row"))
            salts = hash_numbered([shard.source for shard in self._shards])
            return salts.take(shard, mode="clip") ^ row.view(np.uint64)
        place = np.arange(rows.start, rows.start + rows.num_rows)
        salts = np.zeros(rows.num_rows, np.uint64)
        if "source" in rows.frame.columns:
            source = rows.frame.get_column("source")
            place = rows.frame.select(pl.int_range(pl.len()).over("source")).to_series().to_numpy()
            place = place + self._rows_before(rows.start, source)
            salts = hash_strings(rows.arrow("source").dictionary_encode())
        return salts ^ place.view(np.uint64)

    def own_keys(self, rows: LengthsRows) -> pa.Array | None:
        """The keys of `rows`, null where a record has no name of its own: a key that is made of its
        shard's name changes with the other shards' names."""
        if "key" not in rows.frame.columns:
            return None
        keys = rows.arrow("key")
        if not self._shards:
            return keys
        shard, row = (pl.Series(rows.ints(name)[0]) for name in ("shard", "row"))
        names = pl.Series([f"{posixpath.basename(shard.uri)}#" for shard in self._shards])
        made = names.gather(shard.clip(0, len(names) - 1)) + row.cast(pl.String)
        ends = pl.col("key").str.ends_with(pl.lit(made)).fill_null(True)
        is_made = rows.frame.select(ends).to_series()
        return pc.if_else(is_made.to_arrow(), pa.scalar(None, keys.type), keys)

    @cached_property
    def _shards(self) -> tuple[Shard, ...]:
        return self._table.shards

    def _rows_before(self, start: int, source: pl.Series) -> Int64s:
        """int64 [n]: how many rows before row `start` have the source of each row."""
        if start < self._counted:
            self._counted, self._before = 0, Counter()
        while self._counted < start:
            stop = min(start, self._counted + _RUN)
            rows = self._table.read(self._counted, stop, ["source"])
            self._before.update(dict(rows.frame.get_column("source").value_counts().rows()))
            self._counted = stop
        before = np.zeros(len(source), np.int64)
        for name, number in self._before.items():
            before[source.eq_missing(name).to_numpy()] = number
        return before
