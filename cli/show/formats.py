"""Rows of a query as JSON, CSV or a table."""

from __future__ import annotations

import csv
import decimal
import io
import math
from typing import Any

from packidx.errors import OptionError

from .console import format_table, json_text


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
    right = [
        bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        for at in range(len(columns))
    ]
    return format_table(columns, ([_cell(value) for value in row] for row in rows), right)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


FORMATS = {"json": as_json, "csv": as_csv, "table": as_table}
