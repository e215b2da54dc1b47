"""The two engines that count rows of Parquet files: the same aggregates, in SQL and in Polars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from packidx.errors import FormatError, SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS

_MEDIA = ("image_tokens", "video_tokens", "audio_tokens")

READ = ("status", "method", "length", "label_tokens", *_MEDIA)
"""The columns that are read besides those that rows are told apart by."""

SUMS = ("count", "label_tokens", "num_unlabelled", "image_tokens", "video_tokens", "num_with_media")
"""The aggregates, all int64."""

_HELP = "correct the value or leave the column out"

Engine = Literal["duckdb", "polars"]
ENGINES: tuple[Engine, ...] = ("duckdb", "polars")


def is_text(name: str) -> bool:
    """Whether a column of the lengths table holds text."""
    return bool(pa.types.is_string(LENGTHS.field(name).type))


def scan_duckdb(
    files: Sequence[Path],
    by: Sequence[str],
    found: Sequence[str],
    threads: int | None = None,
    memory_limit: str | None = None,
) -> pa.Table:
    """The rows of `files` by the columns `by`, ``ok``, ``method`` and ``length``; order undefined.

    Args:
        files: each has the columns `found` and no other that is read.
        threads, memory_limit: of DuckDB; None leaves them to it.
    """
    import duckdb

    def column(name: str) -> str:
        kind = "VARCHAR" if is_text(name) else "INTEGER" if name in READ else "BIGINT"
        known = f'"{name}"' if name in found else "NULL"
        return f"CAST({known} AS {kind})"

    media = " + ".join(f"coalesce({column(name)}, 0)::BIGINT" for name in _MEDIA)
    keys = {name: column(name) for name in (*by, "method", "length")}
    keys["ok"] = "coalesce(status = 'ok', false)" if "status" in found else "true"
    sums = (
        "count(*)",
        f"coalesce(sum({column('label_tokens')}), 0)",
        f"count(*) - count({column('label_tokens')})",
        f"coalesce(sum({column('image_tokens')}), 0)",
        f"coalesce(sum({column('video_tokens')}), 0)",
        f"count(*) FILTER ({media} > 0)",
    )
    aggregates = {name: f"({how})::BIGINT" for name, how in zip(SUMS, sums, strict=True)}
    named = ", ".join(f'{how} AS "{name}"' for name, how in (keys | aggregates).items())
    query = f"SELECT {named} FROM {scan_of(files)} GROUP BY ALL"
    config = {"threads": threads, "memory_limit": memory_limit}
    with duckdb.connect(config={k: v for k, v in config.items() if v is not None}) as connection:
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.ConversionException as error:
            raise FormatError(f"{_at(files)}: {_first_line(error)}; {_HELP}") from None
        except duckdb.Error as error:
            raise SourceError(f"{_at(files)} cannot be read ({_first_line(error)})") from None


def scan_polars(files: Sequence[Path], by: Sequence[str], found: Sequence[str]) -> pa.Table:
    """What `scan_duckdb` returns, by Polars' streaming engine."""

    def column(name: str) -> pl.Expr:
        kind = pl.String if is_text(name) else pl.Int32 if name in READ else pl.Int64
        return (pl.col(name) if name in found else pl.lit(None)).cast(kind).alias(name)

    ok = pl.lit(True)
    if "status" in found:
        ok = (pl.col("status").cast(pl.String) == "ok").fill_null(False)
    keys = [*(column(name) for name in (*by, "method", "length")), ok.alias("ok")]
    numbers = {name: pl.col(name).cast(pl.Int64) for name in ("label_tokens", *_MEDIA)}
    media = pl.sum_horizontal(numbers[name].fill_null(0) for name in _MEDIA)
    sums = (
        pl.len(),
        numbers["label_tokens"].sum(),
        pl.col("label_tokens").null_count(),
        numbers["image_tokens"].sum(),
        numbers["video_tokens"].sum(),
        (media > 0).sum(),
    )
    scans = [
        pl.scan_parquet(path, glob=False, hive_partitioning=False).select(
            *keys, *(column(name) for name in numbers)
        )
        for path in files
    ]
    aggregates = [how.cast(pl.Int64).alias(name) for name, how in zip(SUMS, sums, strict=True)]
    grouped = pl.concat(scans).group_by(*by, "method", "length", "ok").agg(aggregates)
    try:
        counted = _collect(grouped)
    except pl.exceptions.InvalidOperationError as error:
        raise FormatError(f"{_at(files)}: {_first_line(error)}; {_HELP}") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SourceError(f"{_at(files)} cannot be read ({_first_line(error)})") from None
    return counted.to_arrow(compat_level=pl.CompatLevel.oldest())


def _collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of `frame`, by the streaming engine under the name that this release has for it."""
    try:
        return frame.collect(engine="streaming")
    except ValueError:  # an older release, which says so before it begins
        named: dict[str, Any] = {"streaming": True}
        rows: pl.DataFrame = frame.collect(**named)
        return rows


def _at(files: Sequence[Path]) -> str:
    return f"{files[0]}" if len(files) == 1 else f"{files[0]} or one of {len(files) - 1} more"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
