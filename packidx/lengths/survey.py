"""A lengths table as counts, straight from its Parquet files: one scan, whatever its size.

What a dry run, a mixture and a certificate ask of the lengths is how many samples have each length
in each source. DuckDB counts that as it reads, in memory that grows with the number of different
lengths and not with the number of samples. Only integers are added, and the rows are sorted by
a key that is unique, so the result is one for any number of threads and any order of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.errors import FormatError, SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS, METHODS
from packidx.lengths.rows import strongest_first

_MEDIA = ("image_tokens", "video_tokens", "audio_tokens")

_READ = ("source", "status", "method", "length", *_MEDIA)
"""The columns that are read."""

_SUMS = ("count", "num_with_media")
"""The aggregates, all int64."""


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """Usable samples of one source, added up.

    Attributes:
        num_samples: samples that are not rejected and have a length.
        num_tokens: Σ length.
    """

    num_samples: int = 0
    num_tokens: int = 0


@dataclass(frozen=True)
class Survey:
    """The number of rows of each kind in a lengths table.

    Attributes:
        table: sorted by its key, nulls first, which is unique: ``source`` string, ``ok`` bool
            (status is not another), ``method`` string and ``length`` int64. Beside it, int64:
            ``count`` rows, and ``num_with_media`` rows with any.
    """

    table: pa.Table

    @property
    def num_samples(self) -> int:
        """All rows, usable or not."""
        return int(self.table["count"].to_numpy().sum())

    @property
    def methods(self) -> dict[str, int]:
        """Rows that are not rejected by the method that counted them, strongest first."""
        named = pc.and_(self.table["ok"], self.table["method"].is_valid())
        grouped = self.table.filter(named).group_by("method").aggregate([("count", "sum")])
        pairs = zip(*(grouped[name].to_pylist() for name in ("method", "count_sum")), strict=True)
        return strongest_first(dict(pairs), "lengths")

    @property
    def weakest_method(self) -> str:
        """The least exact of the methods that counted the usable rows."""
        return max(self.methods, key=METHODS.index, default="exact")

    def usable(self, shift: bool = False, longest: int | None = None) -> pa.Table:
        """The rows of `table` that a plan can pack: ok, 0 < length - shift <= `longest`."""
        length = self.table["length"]
        fits = pc.and_(self.table["ok"], pc.greater(length, int(shift)))
        if longest is not None:
            fits = pc.and_(fits, pc.less_equal(length, longest + shift))
        return self.table.filter(fits)

    def totals(
        self, shift: bool = False, longest: int | None = None
    ) -> dict[str | None, SourceTotals]:
        """Return what the usable samples of each source add up to; a source without any is there
        too.

        Args:
            shift: count length - 1.
            longest: leave longer samples out.
        """
        known = pc.unique(self.table["source"]).to_pylist()
        totals: dict[str | None, SourceTotals] = dict.fromkeys(known, SourceTotals())
        rows = self.usable(shift, longest)
        tokens = pc.multiply(pc.subtract(rows["length"], int(shift)), rows["count"])
        rows = rows.append_column("num_tokens", tokens)
        grouped = rows.group_by("source").aggregate([("count", "sum"), ("num_tokens", "sum")])
        for row in grouped.to_pylist():
            totals[row["source"]] = SourceTotals(row["count_sum"], row["num_tokens_sum"])
        return totals


def survey(files: Sequence[Path], *, threads: int | None = None) -> Survey:
    """Count the rows of a lengths table, or of any Parquet files that have `length`.

    Args:
        files: Parquet files; a column that one lacks is null there.

    Raises:
        SourceError: a file cannot be read.
        FormatError: no file has `length`, or a value is not what the schema says.
    """
    kinds = {"source": pa.string(), "ok": pa.bool_(), "method": pa.string(), "length": pa.int64()}
    keys = list(kinds)
    tables = [pa.schema(kinds | dict.fromkeys(_SUMS, pa.int64())).empty_table()]
    present: set[str] = set()
    for names, group in _by_columns(files).items():
        present |= set(names)
        counted = _scan(group, names, threads)
        tables.append(counted.select(tables[0].column_names).cast(tables[0].schema))
    if "length" not in present:
        raise FormatError(f"{files[0] if files else 'no file'}: there is no column `length`")
    table = pa.concat_tables(tables).group_by(keys).aggregate([(name, "sum") for name in _SUMS])
    table = table.rename_columns([*keys, *_SUMS])
    return Survey(table.take(pc.sort_indices(*_nulls_first(table, keys))))


def _nulls_first(table: pa.Table, keys: list[str]) -> tuple[pa.Table, list[tuple[str, str]]]:
    """Return what to sort, and by what: how a key says where its nulls go differs between
    releases."""
    columns: dict[str, Any] = {}
    for name in keys:
        columns |= {f"{name} is known": table[name].is_valid(), name: table[name]}
    return pa.table(columns), [(name, "ascending") for name in columns]


def _by_columns(files: Sequence[Path]) -> dict[tuple[str, ...], list[Path]]:
    """The files by those columns that are read and that they have; each is checked for types."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in files:
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{path} cannot be read as Parquet ({reason})") from None
        names = [name for name in _READ if name in schema.names]
        nulls = {name for name in names if _is_null(path, schema.field(name))}
        # A column of nulls alone is as good as none, if it is not the one that has to be there.
        names = [name for name in names if name == "length" or name not in nulls]
        groups.setdefault(tuple(names), []).append(path)
    return groups


def _is_null(path: Path, field: pa.Field) -> bool:
    """Return whether a column has nulls alone; one of another type than the schema's is an
    error."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    wanted, fits = ("text", texts) if _is_text(field.name) else ("integer", (types.is_integer,))
    if types.is_null(kind) or any(fit(kind) for fit in fits):
        return bool(types.is_null(kind))
    raise FormatError(f"{path}: column `{field.name}` is {kind}, not {wanted}: cast it first")


def _is_text(name: str) -> bool:
    """Return whether a column of the lengths table holds text."""
    return bool(pa.types.is_string(LENGTHS.field(name).type))


def _scan(files: Sequence[Path], present: Sequence[str], threads: int | None = None) -> pa.Table:
    """The rows of `files` by ``source``, ``ok``, ``method`` and ``length``; order undefined.

    Args:
        files: each has the columns `present` and no other that is read.
    """
    import duckdb

    def column(name: str) -> str:
        kind = "VARCHAR" if _is_text(name) else "INTEGER"
        known = f'"{name}"' if name in present else "NULL"
        return f"CAST({known} AS {kind})"

    media = " + ".join(f"coalesce({column(name)}, 0)::BIGINT" for name in _MEDIA)
    keys = {name: column(name) for name in ("source", "method", "length")}
    keys["ok"] = "coalesce(status = 'ok', false)" if "status" in present else "true"
    sums = ("count(*)", f"count(*) FILTER ({media} > 0)")
    aggregates = {name: f"({how})::BIGINT" for name, how in zip(_SUMS, sums, strict=True)}
    named = ", ".join(f'{how} AS "{name}"' for name, how in (keys | aggregates).items())
    query = f"SELECT {named} FROM {scan_of(files)} GROUP BY ALL"
    with duckdb.connect(config={} if threads is None else {"threads": threads}) as connection:
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.ConversionException as error:
            raise FormatError(
                f"{_at(files)}: {_first_line(error)}; correct the value or leave the column out"
            ) from None
        except duckdb.Error as error:
            raise SourceError(f"{_at(files)} cannot be read ({_first_line(error)})") from None


def _at(files: Sequence[Path]) -> str:
    return f"{files[0]}" if len(files) == 1 else f"{files[0]} or one of {len(files) - 1} more"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
