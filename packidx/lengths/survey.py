"""What the samples of each source of a lengths table add up to, which is what a mixture asks.

DuckDB counts them as it reads, in memory that does not grow with them. Only integers are added, so
the result is one for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from packidx.errors import SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import MEDIA_COUNTERS
from packidx.io.copies import local_copies
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
    lengths: Lengths, longest: int | None = None, *, cuts_text: bool = False
) -> dict[str | None, SourceTotals]:
    """Return what the usable samples of each source add up to; a source without any is there too.

    Args:
        lengths: the table.
        longest: leave longer samples out.
        cuts_text: but for those that are known to have no media.

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

    tokens = cast("length")
    is_usable = f"{tokens} > 0"
    if "status" in lengths.columns:
        is_usable += f" AND {cast('status')} = 'ok'"
    if longest is not None:
        is_text = _is_text(lengths.columns) if cuts_text else "false"
        is_usable += f" AND ({tokens} <= {longest} OR {is_text})"
    paths = local_copies(lengths.files)
    with duckdb.connect() as connection:
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


def _is_text(columns: Sequence[str]) -> str:
    """Return SQL that says what `LengthsRows.may_hold_media` denies."""
    present = [[name for name in names if name in columns] for names in MEDIA_COUNTERS]
    most = [f"greatest({', '.join(names)}, NULL)" for names in present if names]
    is_zero = " AND ".join(["true", *(f"{value} = 0" for value in most)])
    has_none = " AND ".join(["true", *(f"coalesce({value}, 0) <= 0" for value in most)])
    if "media" in columns:
        if not all(present[:2]):  # of images and videos
            is_zero = "false"
        is_zero = f"CASE WHEN media IS NULL THEN {is_zero} ELSE len(media) = 0 END"
    return f"(coalesce({is_zero}, false) AND {has_none})"
