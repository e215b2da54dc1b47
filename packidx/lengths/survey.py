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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packidx.errors import FormatError, OptionError, SourceError
from packidx.format.schema import LENGTHS, METHODS
from packidx.lengths.scan import READ, SUMS, is_text, scan
from packidx.pack.histogram import Histogram


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """Usable samples of one source, added up.

    Attributes:
        num_samples: samples that are not rejected and have a length.
        num_tokens: Σ length.
        label_tokens: Σ label_tokens of the samples that state them.
        num_unlabelled: samples that do not.
        image_tokens, video_tokens: Σ over the samples that state them.
    """

    num_samples: int = 0
    num_tokens: int = 0
    label_tokens: int = 0
    num_unlabelled: int = 0
    image_tokens: int = 0
    video_tokens: int = 0


@dataclass(frozen=True)
class Survey:
    """How many rows a lengths table has of each kind.

    Attributes:
        by: the columns that rows are told apart by, besides the three below.
        present: the columns of `by` that some file has.
        table: sorted by its key, nulls first, which is unique: the columns `by`, ``ok`` bool
            (status is not another), ``method`` string and ``length`` int64. Beside it, int64:
            ``count`` rows, Σ ``label_tokens`` of those that state them, ``num_unlabelled`` rows
            that do not, Σ ``image_tokens``, Σ ``video_tokens``, ``num_with_media`` rows with any.
    """

    by: tuple[str, ...]
    present: tuple[str, ...]
    table: pa.Table

    @property
    def num_samples(self) -> int:
        """All rows, usable or not."""
        return int(self._ints("count").sum())

    @property
    def methods(self) -> dict[str, int]:
        """Rows that are not rejected by the method that counted them, strongest first."""
        named = pc.and_(self.table["ok"], self.table["method"].is_valid())
        grouped = self.table.filter(named).group_by("method").aggregate([("count", "sum")])
        counts = dict(
            zip(*(grouped[name].to_pylist() for name in grouped.column_names), strict=True)
        )
        unknown = sorted(counts.keys() - set(METHODS))
        if unknown:
            raise FormatError(f"lengths: method is {unknown[0]!r}, not one of {METHODS}")
        return {name: counts[name] for name in METHODS if name in counts}

    @property
    def weakest_method(self) -> str:
        """The least exact of the methods that counted the usable rows."""
        return max(self.methods, key=METHODS.index, default="exact")

    def usable(self, shift: bool = False, longest: int | None = None) -> pa.Table:
        """The rows of `table` that a plan can place: ok, 0 < length - shift <= `longest`."""
        length = self.table["length"]
        fits = pc.and_(self.table["ok"], pc.greater(length, int(shift)))
        if longest is not None:
            fits = pc.and_(fits, pc.less_equal(length, longest + shift))
        return self.table.filter(fits)

    def histogram(self, shift: bool = False) -> Histogram:
        """The usable samples by length, or by length - 1 with `shift`."""
        return histogram_of(self.usable(shift), shift)

    def totals(
        self, shift: bool = False, longest: int | None = None
    ) -> dict[str | None, SourceTotals]:
        """What the usable samples of each source add up to; a source without any is there too.

        Args:
            shift: count length - 1.
            longest: leave longer samples out.

        Raises:
            ValueError: the survey is not by one column of text.
        """
        if len(self.by) != 1 or not is_text(self.by[0]):
            raise ValueError(f"totals are by one column of text, and this survey is by {self.by}")
        name = self.by[0]
        known = pc.unique(self.table[name]).to_pylist()
        totals: dict[str | None, SourceTotals] = dict.fromkeys(known, SourceTotals())
        rows = self.usable(shift, longest)
        tokens = pc.multiply(pc.subtract(rows["length"], int(shift)), rows["count"])
        rows = rows.append_column("num_tokens", tokens)
        sums = ("count", "num_tokens", *SUMS[1:5])
        grouped = rows.group_by(name).aggregate([(column, "sum") for column in sums])
        for row in grouped.to_pylist():
            totals[row[name]] = SourceTotals(*(row[f"{column}_sum"] for column in sums))
        return totals

    def _ints(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.table[name].fill_null(0).to_numpy()
        return values


def histogram_of(rows: pa.Table, shift: bool = False) -> Histogram:
    """The counts of usable rows of a survey's table, by length or by length - 1."""
    grouped = rows.group_by("length").aggregate([("count", "sum")])
    grouped = grouped.sort_by([("length", "descending")])
    lengths = grouped["length"].to_numpy().astype(np.int64) - int(shift)
    return Histogram(lengths, grouped["count_sum"].to_numpy().astype(np.int64))


def survey(
    files: Sequence[Path],
    *,
    by: Sequence[str] = ("source",),
    threads: int | None = None,
    memory_limit: str | None = None,
) -> Survey:
    """Count the rows of a lengths table, or of any Parquet files that have `length`.

    Args:
        files: Parquet files; a column that one lacks is null there.
        by: columns of the lengths table, text or integers, by which rows are told apart.
        threads: of DuckDB, None for one per core.
        memory_limit: of DuckDB, such as ``'2GB'``.

    Raises:
        SourceError: a file cannot be read.
        FormatError: no file has `length`, or a value is not what the schema says.
        OptionError: a column of `by` is not known.
    """
    by = tuple(by)
    _check(by)
    parts, present = [_empty(by)], set()
    columns = (*by, *(name for name in READ if name not in by))
    for names, group in _by_columns(files, columns).items():
        present |= set(names)
        part = scan(group, by, names, threads, memory_limit)
        parts.append(part.select(parts[0].column_names).cast(parts[0].schema))
    if "length" not in present:
        raise FormatError(f"{files[0] if files else 'no file'}: there is no column `length`")
    keys = [*by, "ok", "method", "length"]
    table = pa.concat_tables(parts).group_by(keys).aggregate([(name, "sum") for name in SUMS])
    table = table.rename_columns([*keys, *SUMS])
    order = pc.sort_indices(*_nulls_first(table, keys))
    return Survey(by, tuple(name for name in by if name in present), table.take(order))


def _nulls_first(table: pa.Table, keys: list[str]) -> tuple[pa.Table, list[tuple[str, str]]]:
    """What to sort, and by what: how a key says where its nulls go differs between releases."""
    columns: dict[str, Any] = {}
    for name in keys:
        columns |= {f"{name} is known": table[name].is_valid(), name: table[name]}
    return pa.table(columns), [(name, "ascending") for name in columns]


def _check(by: tuple[str, ...]) -> None:
    for name in by:
        known = name in LENGTHS.names and not pa.types.is_nested(LENGTHS.field(name).type)
        if not known or name in READ:
            raise OptionError(f"a survey by {name!r} is not possible: name a column such as source")


def _empty(by: tuple[str, ...]) -> pa.Table:
    kinds = {name: pa.string() if is_text(name) else pa.int64() for name in by}
    kinds |= {"ok": pa.bool_(), "method": pa.string(), "length": pa.int64()}
    return pa.schema(kinds | dict.fromkeys(SUMS, pa.int64())).empty_table()


def _by_columns(
    files: Sequence[Path], columns: tuple[str, ...]
) -> dict[tuple[str, ...], list[Path]]:
    """The files by those of `columns` that they have; each is checked for their types."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in files:
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{path} cannot be read as Parquet ({reason})") from None
        names = [name for name in columns if name in schema.names]
        nulls = {name for name in names if _is_null(path, schema.field(name))}
        # A column of nulls alone is as good as none, if it is not the one that has to be there.
        names = [name for name in names if name == "length" or name not in nulls]
        groups.setdefault(tuple(names), []).append(path)
    return groups


def _is_null(path: Path, field: pa.Field) -> bool:
    """Whether a column has nulls alone; one of another type than the schema's is an error."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    wanted, fits = ("text", texts) if is_text(field.name) else ("integer", (types.is_integer,))
    if types.is_null(kind) or any(fit(kind) for fit in fits):
        return bool(types.is_null(kind))
    raise FormatError(f"{path}: column `{field.name}` is {kind}, not {wanted}: cast it first")
