"""`packidx sql`: DuckDB over the snapshot's Parquet files."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import duckdb

    from packidx.copies import Part
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
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def sql(
    index: str,
    query: str | None,
    kind: str | None,
    output: str | None,
    roots: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run QUERY over INDEX or INDEX@ID; "-" reads it from stdin, without QUERY list the columns.

    The views are packs, samples and dropped, and lengths where that table is still there. Of what
    is in an object store, only the tables that QUERY names are fetched.
    """
    from packidx.index import open_index

    from .console import status
    from .roots import parse_roots

    kind = kind or _kind_of(output)
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    opened = open_index(index, parse_roots(roots))
    if query is None or not query.strip():
        query = "SELECT table_name AS view, column_name, data_type FROM information_schema.columns"
    elif query == "-":
        query = sys.stdin.read()
    with status(quiet) as doing:
        doing("running the query")
        text = _run(opened, query, kind, output)
    if text is not None:
        _hand_out(text, output)


def _kind_of(output: str | None) -> str:
    from packidx.errors import OptionError

    if output is None:
        return "table"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"-o {output}: say what to write with --format, or end it in {known}")
    return _SUFFIXES[suffix]


def _run(index: Index, query: str, kind: str, output: str | None) -> str | None:
    """The result as text; None where it went into a Parquet file."""
    import duckdb

    from packidx.errors import OptionError

    from .formats import FORMATS

    absent = ""
    try:
        with ExitStack() as copies:
            connection = duckdb.connect()
            absent = _make_views(connection, index, query, copies)
            relation = connection.sql(query)
            if relation is None:  # a statement without rows
                return "[]\n" if kind == "json" else ""
            if output and kind == "parquet":
                relation.write_parquet(output, compression="zstd")
                return None
            columns, rows = relation.columns, _rows(relation)
    except duckdb.Error as error:
        first = " ".join(str(error).split("\n\n")[0].split())
        if absent and "name lengths does not exist" in first:
            first = absent
        if "syntax error" in first and re.search(r"\b(window|group|offset)\b", query, re.I):
            first += '; the columns "window", "group" and "offset" need double quotes'
        raise OptionError(f"the query failed: {first}") from None
    return FORMATS[kind](columns, rows)


def _rows(relation: duckdb.DuckDBPyRelation) -> list[tuple[Any, ...]]:
    """All rows as Python values; times with a zone as text, which else need one more package."""
    zoned = [
        f'"{name}"::VARCHAR AS "{name}"' if "TIME ZONE" in str(kind).upper() else f'"{name}"'
        for name, kind in zip(relation.columns, relation.types, strict=True)
        if '"' not in name
    ]
    has_zones = any("::VARCHAR" in column for column in zoned)
    rows: list[tuple[Any, ...]] = (
        relation.project(", ".join(zoned)) if has_zones else relation
    ).fetchall()
    return rows


_TABLES = ("packs", "samples", "dropped")


def _make_views(
    connection: duckdb.DuckDBPyConnection, index: Index, query: str, copies: ExitStack
) -> str:
    """Create the views; returns why there is no view `lengths`, or an empty string.

    Args:
        connection: where they are created.
        index: of the tables.
        query: tables in an object store that it does not name are left out, unless it names none.
        copies: what the views need lives as long as this.
    """
    from packidx.copies import local_copies
    from packidx.format.parquet import scan_of
    from packidx.storage import is_url

    named = {name for name in (*_TABLES, "lengths") if re.search(rf"\b{name}\b", query, re.I)}
    named = named or {*_TABLES, "lengths"}
    tables = {
        name: copies.enter_context(index.local_files(name))
        for name in _TABLES
        if name in named or not is_url(index.path)
    }
    absent = ""
    if "lengths" in named or not is_url(index.resolve(index.manifest["lengths"]["uri"])):
        lengths, absent = _lengths_files(index)
        if lengths:
            tables["lengths"] = copies.enter_context(local_copies(lengths))
    for name, files in tables.items():
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {scan_of(files)}")
    return absent


def _lengths_files(index: Index) -> tuple[list[Part], str]:
    """The planned lengths table's files, or none and the reason."""
    from packidx import storage
    from packidx.copies import Part
    from packidx.errors import FormatError, SourceError
    from packidx.format.lengths import LengthsManifest
    from packidx.format.manifest import load
    from packidx.lengths.open import find_table

    planned = index.manifest["lengths"]
    uri = index.resolve(planned["uri"])
    try:
        table = find_table(uri, planned.get("pattern", False))
        if table.manifest is None:
            return table.files, ""
        manifest = load(table.manifest, LengthsManifest, "estimate again")
    except SourceError as error:
        return [], f"there is no view lengths: {error}, or say where it is with --root OLD=NEW"
    except FormatError as error:
        return [], f"there is no view lengths: {error}"
    if manifest["fingerprint"] != planned["fingerprint"]:
        return [], f"there is no view lengths: {uri} is not the table that was planned"
    parts = manifest["files"]
    return [Part(storage.join(uri, p["path"]), p["bytes"], p["sha256"]) for p in parts], ""


def _hand_out(text: str, output: str | None) -> None:
    """To stdout, into a file as a whole, or into what else `output` names (a pipe, a device)."""
    if output is None:
        click.echo(text, nl=False)
        return
    from packidx.files import write_atomic

    target = Path(output).resolve()
    if target.exists() and not target.is_file():
        with open(target, "w") as file:
            file.write(text)
    elif not target.parent.is_dir():
        from packidx.errors import OptionError

        raise OptionError(f"-o {output}: the folder {target.parent} does not exist")
    else:
        write_atomic(target, text.encode())
