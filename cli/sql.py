"""`packidx sql`: DuckDB over the snapshot's Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import duckdb

    from packidx.index import Index

_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


@click.command()
@click.argument("index")
@click.argument("query", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="How to print.  [default: by the name of FILE, else table]",
)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout.")
@click.option(
    "--root", "roots", multiple=True, metavar="OLD=NEW", help="Where moved data lies now."
)
def sql(
    index: str, query: str | None, kind: str | None, output: str | None, roots: tuple[str, ...]
) -> None:
    """Run QUERY over INDEX or INDEX@ID; without QUERY, read it from stdin or list the views.

    The views are packs, samples and dropped, and lengths where that table is still there.
    """
    from packidx.index import open_index

    from .roots import parse_roots

    opened = open_index(index, parse_roots(roots))
    kind = kind or (_SUFFIXES.get(Path(output).suffix, "csv") if output else "table")
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    connection = _connect(opened)
    if query is None and not sys.stdin.isatty():
        query = sys.stdin.read()
    if not query or not query.strip():
        query = "SELECT table_name AS view, column_name, data_type FROM information_schema.columns"
    _run(connection, query, kind, output)


def _connect(index: Index) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = true")
    tables = {
        name: [str(path) for path in index.files(name)] for name in ("packs", "samples", "dropped")
    }
    lengths = Path(index.resolve(index.manifest["lengths"]["uri"]))
    if lengths.is_dir():
        tables["lengths"] = sorted(str(path) for path in lengths.glob("*.parquet"))
    elif lengths.is_file():
        tables["lengths"] = [str(lengths)]
    for name, files in tables.items():
        if files:
            listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")
    return connection


def _run(connection: duckdb.DuckDBPyConnection, query: str, kind: str, output: str | None) -> None:
    import duckdb

    from packidx.errors import OptionError

    try:
        relation = connection.sql(query)
        if relation is None:  # a statement without rows
            return
        if output and kind == "parquet":
            relation.write_parquet(output, compression="zstd")
            return
        columns, rows = relation.columns, relation.fetchall()
    except duckdb.Error as error:
        first = " ".join(str(error).split("\n\n")[0].split())
        raise OptionError(f"the query failed: {first}") from None
    text = _FORMATS[kind](columns, rows)
    if output:
        from packidx.files import write_atomic

        write_atomic(output, text.encode())
    else:
        click.echo(text, nl=False)


def _as_json(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    import json

    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    return json.dumps(objects, ensure_ascii=False, default=_plain, indent=None) + "\n"


def _plain(value: Any) -> Any:
    """What JSON has no type for: DECIMAL and HUGEINT as numbers, everything else as text."""
    import decimal

    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _as_csv(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def _as_table(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    from .console import format_table

    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))]
    return format_table(columns, ([_cell(value) for value in row] for row in rows), right)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_FORMATS = {"json": _as_json, "csv": _as_csv, "table": _as_table}
