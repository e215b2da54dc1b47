"""What the samples of each source of a lengths table add up to, which is what a mixture asks.

DuckDB counts them as it reads, in memory that does not grow with them. Only integers are added, so
the result is one for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from packidx.errors import SourceError
from packidx.format.parquet import scan_of
from packidx.lengths.rows import typed
from packidx.lengths.table import Lengths

_TYPES = {"length": "BIGINT", "source": "VARCHAR", "status": "VARCHAR"}


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """Usable samples of one source, added up.

    Attributes:
        num_samples: samples that are not rejected and have a length.
        num_tokens: Σ length.
    """

    num_samples: int = 0
    num_tokens: int = 0


def source_totals(
    lengths: Lengths, shift: bool = False, longest: int | None = None
) -> dict[str | None, SourceTotals]:
    """Return what the usable samples of each source add up to; a source without any is there too.

    Args:
        lengths: the table.
        shift: count length - 1.
        longest: leave longer samples out.

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

    tokens = f"{cast('length')} - {int(shift)}"
    is_usable = f"{tokens} > 0"
    if "status" in lengths.columns:
        is_usable += f" AND {cast('status')} = 'ok'"
    if longest is not None:
        is_usable += f" AND {tokens} <= {longest}"
    with lengths.local_files() as paths, duckdb.connect() as connection:
        query = (
            f"SELECT {cast('source')}, count(*) FILTER ({is_usable}), "
            f"coalesce(sum({tokens}) FILTER ({is_usable}), 0) "
            f"FROM {scan_of(paths, may_differ=True)} GROUP BY 1 ORDER BY 1 NULLS FIRST"
        )
        try:
            rows = connection.execute(query).fetchall()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{lengths.uri} cannot be counted ({reason})") from None
    return {name: SourceTotals(*sums) for name, *sums in rows}
