"""A lengths table as counts: how many samples have each length in each source.

That is what a dry run, a mixture and a certificate ask. DuckDB counts it as it reads, in memory
that grows with the number of lengths and not with that of samples. Only integers are added,
and rows are sorted by a key that is unique, so the result is one for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

from packidx.errors import SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import METHODS
from packidx.lengths.rows import strongest_first, typed
from packidx.lengths.table import Lengths

_MEDIA = ("image_tokens", "video_tokens", "audio_tokens")
_TYPES = dict.fromkeys(("length", *_MEDIA), "BIGINT")
_TYPES |= dict.fromkeys(("source", "status", "method"), "VARCHAR")


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
        table: sorted by its key, nulls first, which is unique: ``source``, ``ok`` (status is not
            another), ``method`` and ``length``. Beside it ``count`` rows, and ``num_with_media``
            rows with any.
    """

    table: pl.DataFrame

    @property
    def num_samples(self) -> int:
        """All rows, usable or not."""
        return int(self.table["count"].sum())

    @cached_property
    def methods(self) -> dict[str, int]:
        """Rows that are not rejected by the method that counted them, strongest first."""
        named = self.table.filter("ok", pl.col("method").is_not_null())
        counts = named.group_by("method").agg(pl.col("count").sum())
        return strongest_first(dict(counts.rows()), "lengths")

    @property
    def weakest_method(self) -> str:
        """The least exact of the methods that counted the usable rows."""
        return max(self.methods, key=METHODS.index, default="exact")

    def usable(self, shift: bool = False, longest: int | None = None) -> pl.DataFrame:
        """The rows of `table` that a plan can pack: ok, 0 < length - shift <= `longest`."""
        rows = self.table.filter("ok", pl.col("length") > int(shift))
        return rows if longest is None else rows.filter(pl.col("length") <= longest + shift)

    def totals(
        self, shift: bool = False, longest: int | None = None
    ) -> dict[str | None, SourceTotals]:
        """Return what the usable samples of each source add up to; a source without any is there
        too.

        Args:
            shift: count length - 1.
            longest: leave longer samples out.
        """
        tokens = (pl.col("length") - int(shift)) * pl.col("count")
        groups = self.usable(shift, longest).group_by("source")
        sums = groups.agg(pl.col("count").sum(), tokens.sum().alias("num_tokens"))
        totals = dict.fromkeys(self.table["source"].unique().to_list(), SourceTotals())
        return totals | {name: SourceTotals(*own) for name, *own in sums.rows()}


def survey(lengths: Lengths, *, threads: int | None = None) -> Survey:
    """Count the rows of a lengths table.

    Raises:
        SourceError: a file cannot be read.
        FormatError: a value is not what the schema says.
    """
    import duckdb

    for file, footer in zip(lengths.files, lengths.footers, strict=True):
        for field in footer.schema.to_arrow_schema():
            if field.name in _TYPES and not pa.types.is_null(field.type):
                column = pl.Series(pl.from_arrow(pa.nulls(0, field.type)))
                typed(column.alias(field.name), file.path)

    def cast(name: str) -> str:
        return f"CAST({name if name in lengths.columns else 'NULL'} AS {_TYPES[name]})"

    media = " + ".join(f"coalesce({cast(name)}, 0)::BIGINT" for name in _MEDIA)
    is_ok = f"coalesce({cast('status')} = 'ok', {'status' not in lengths.columns})"
    selected = [f"{cast(name)} AS {name}" for name in ("source", "method", "length")]
    selected += [f"{is_ok} AS ok", "count(*)::BIGINT AS count"]
    selected.append(f"(count(*) FILTER ({media} > 0))::BIGINT AS num_with_media")
    with lengths.local_files() as paths:
        rows = f"SELECT {', '.join(selected)} FROM {scan_of(paths, may_differ=True)} GROUP BY ALL"
        config = {} if threads is None else {"threads": threads}
        with duckdb.connect(config=config) as connection:
            try:
                table = connection.sql(rows).pl()
            except duckdb.Error as error:
                reason = str(error).splitlines()[0]
                raise SourceError(f"{lengths.uri} cannot be counted ({reason})") from None
    keys = ["source", "ok", "method", "length"]
    return Survey(table.select(*keys, "count", "num_with_media").sort(*keys, nulls_last=False))
