"""Rows of Parquet files, counted and summed up by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from packidx.errors import FormatError, SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS

_MEDIA = ("image_tokens", "video_tokens", "audio_tokens")

READ = ("source", "status", "method", "length", "label_tokens", *_MEDIA)
"""The columns that are read."""

SUMS = ("count", "label_tokens", "num_unlabelled", "num_with_media")
"""The aggregates, all int64."""


def is_text(name: str) -> bool:
    """Whether a column of the lengths table holds text."""
    return bool(pa.types.is_string(LENGTHS.field(name).type))


def scan(files: Sequence[Path], present: Sequence[str], threads: int | None = None) -> pa.Table:
    """The rows of `files` by ``source``, ``ok``, ``method`` and ``length``; order undefined.

    Args:
        files: each has the columns `present` and no other that is read.
        threads: of DuckDB; None leaves them to it.
    """
    import duckdb

    def column(name: str) -> str:
        kind = "VARCHAR" if is_text(name) else "INTEGER"
        known = f'"{name}"' if name in present else "NULL"
        return f"CAST({known} AS {kind})"

    media = " + ".join(f"coalesce({column(name)}, 0)::BIGINT" for name in _MEDIA)
    keys = {name: column(name) for name in ("source", "method", "length")}
    keys["ok"] = "coalesce(status = 'ok', false)" if "status" in present else "true"
    sums = (
        "count(*)",
        f"coalesce(sum({column('label_tokens')}), 0)",
        f"count(*) - count({column('label_tokens')})",
        f"count(*) FILTER ({media} > 0)",
    )
    aggregates = {name: f"({how})::BIGINT" for name, how in zip(SUMS, sums, strict=True)}
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
