"""Rows of a query as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import decimal
import io
import math
import shutil
import textwrap
from typing import Any, BinaryIO

from packidx.errors import OptionError

from .console import format_table, json_text, visible


def text_of(relation: Any, kind: str, most: int | None) -> str:
    """A DuckDB relation in one of the forms `FORMATS`, or a short table of `most` rows.

    Args:
        relation: None of a statement without rows.
        most: rows of a table for a terminal; None for all rows.
    """
    if relation is None:
        return "[]\n" if kind == "json" else ""
    if most is not None:
        return as_short_table(relation.columns, rows_of(relation, most + 1), most)
    return FORMATS[kind](relation.columns, rows_of(relation))


def write_parquet(relation: Any, file: BinaryIO) -> None:
    """A DuckDB relation as Parquet, batch by batch.

    Raises:
        OptionError: Parquet has no such type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Older releases of DuckDB have it under its former name alone.
        older = not hasattr(relation, "to_arrow_reader")
        read = relation.fetch_arrow_reader if older else relation.to_arrow_reader
        reader = read(1 << 16)
        with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise OptionError(f"the query failed: {error}; cast that column to VARCHAR") from None
    except pa.ArrowException as error:
        raise OptionError(f"the query failed: {error}") from None


def rows_of(relation: Any, most: int | None = None) -> list[tuple[Any, ...]]:
    """Rows as Python values; times with a zone as text, which else need one more package."""
    names = ['"' + name.replace('"', '""') + '"' for name in relation.columns]
    zoned = ["TIME ZONE" in str(kind).upper() for kind in relation.types]
    if any(zoned):
        pairs = zip(names, zoned, strict=True)
        listed = (f"{name}::VARCHAR AS {name}" if is_zoned else name for name, is_zoned in pairs)
        relation = relation.project(", ".join(listed))
    if most is not None:
        relation = relation.limit(most)
    rows: list[tuple[Any, ...]] = relation.fetchall()
    return rows


_LONGEST = 40  # characters of a value in a table that is too wide
_FEW = 3  # columns that a terminal has room for, if their values go on below
_HINT = "For all of it: --format csv or json."


def as_json(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise OptionError(f"two columns are named {twice[0]!r}: rename one with AS")
    objects = [
        {name: _plain(value) for name, value in zip(columns, row, strict=True)} for row in rows
    ]
    return json_text(objects, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """`value` as JSON has it: NaN and infinity are null, bytes hex, decimals exact if integer."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value) if decimal.Decimal(repr(float(value))) == value else str(value)
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def as_csv(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def as_table(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    cells = ([_cell(value) for value in row] for row in rows)
    return format_table(columns, cells, _are_numbers(columns, rows))


def as_short_table(columns: list[str], rows: list[tuple[Any, ...]], most: int) -> str:
    """A table for a terminal: so many rows, and as many columns as fit; says what it left out.

    Long values are cut before columns are left out. Tables of few columns go on below instead.
    """
    notes = []
    if len(rows) > most:
        rows = rows[:most]
        notes.append(f"these are the first {most} rows")
    cells = [[visible(_cell(value), lines=True) for value in row] for row in rows]
    width = shutil.get_terminal_size((100, 24)).columns
    if len(columns) > _FEW and _width(columns, cells) > width:
        cut = [[_cut(cell) for cell in row] for row in cells]
        shown = len(columns)
        while shown > 1 and _width(columns[:shown], [row[:shown] for row in cut]) > width:
            shown -= 1
        if any(row[:shown] != short[:shown] for row, short in zip(cells, cut, strict=True)):
            notes.append("long values are cut")
        if shown < len(columns):
            left_out = ", ".join(columns[shown:])
            notes.append(f"{len(columns) - shown} columns are not shown: {left_out}")
        columns, rows = columns[:shown], [row[:shown] for row in rows]
        cells = [row[:shown] for row in cut]
    text = format_table(columns, cells, _are_numbers(columns, rows))
    if notes:
        said = visible(f"… {'; '.join(notes)}. {_HINT}")
        text += textwrap.fill(said, width, subsequent_indent="  ") + "\n"
    return text


def _width(columns: list[str], cells: list[list[str]]) -> int:
    """Terminal columns of a table."""
    from rich.cells import cell_len

    widths = (
        max(map(cell_len, (name, *below))) for name, *below in zip(columns, *cells, strict=True)
    )
    return sum(widths) + 3 * (len(columns) - 1)


def _cut(cell: str) -> str:
    first, *more = cell.split("\n")
    return first if len(first) <= _LONGEST and not more else f"{first[: _LONGEST - 1]}…"


def _are_numbers(columns: list[str], rows: list[tuple[Any, ...]]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        for at in range(len(columns))
    ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


FORMATS = {"json": as_json, "csv": as_csv, "table": as_table}
