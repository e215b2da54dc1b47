"""`packidx sql`: DuckDB over a snapshot's Parquet files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError, PackidxError

from ..options import log_option, option, root_option
from ..show.console import print_text, status, visible

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked


_MOST_ROWS = 100  # of a table on a terminal
_WIDE = 10_000
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


@click.command()
@click.argument("index")
@click.argument("query", required=False)
@log_option
@option(
    "--timeout",
    "SECONDS",
    "Stop QUERY after this many seconds.",
    type=click.IntRange(1, 1_000_000),
    default=60,
    show_default=True,
)
@option(
    "--format kind",
    None,
    "How to print.  [default: by the name of FILE; else table on a terminal, csv on a pipe]",
    type=click.Choice(["table", "csv", "json", "parquet"]),
)
@option("-o --output", "FILE", "Write to FILE instead of stdout.")
@root_option
def sql(
    index: str,
    query: str | None,
    kind: str | None,
    output: str | None,
    timeout: int,
    roots: dict[str, str],
    log: str | None,
) -> None:
    """Run QUERY over INDEX, INDEX@ID or LENGTHS. Without QUERY, ask at a prompt.

    \b
    packidx sql index/ "SELECT source, count(*) FROM samples GROUP BY 1"
    packidx sql index/ < queries.sql
    packidx sql index/

    The views are packs, samples, dropped, sources and steps (the packs in the order of training,
    as planned), and lengths and rejected if that table is still there; with --log also losses,
    outliers and logged_steps. QUERY is a SELECT and sees these views alone. "-" reads queries from
    stdin, each with its semicolon; so does a missing QUERY if stdin is not a terminal. Without any
    query the columns are listed. From an object store only the tables that QUERY names are fetched.
    """
    from packidx.inspect.sql import asked as opened

    is_terminal = sys.stdout.isatty()
    kind = kind or _kind_of(output, is_terminal)
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    if output is not None:
        _check_folder(output)
    with status():
        asked = opened(index, roots, log)
    asker = Asker(asked, timeout)

    def show(text: str) -> None:
        asker.run(text, kind, None, is_terminal, several=True)

    if query is None and output is None and sys.stdin.isatty() and is_terminal:
        from ..prompt import prompt

        prompt(show, asked.names, asked.title, lambda: asker.run(_ALL_COLUMNS, kind, None, True))
        return
    is_read = query == "-" or (query is None and not sys.stdin.isatty())
    text = (sys.stdin.read() if is_read else query or "").strip() or _ALL_COLUMNS
    if is_read and output is None:
        show(text)
    else:
        asker.run(text, kind, output, is_terminal)


_ALL_COLUMNS = (
    "SELECT table_name AS view, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'main'"
)


@dataclass(frozen=True)
class Asker:
    """Runs queries over an index or a lengths table."""

    asked: Asked
    timeout: int
    """Seconds of a query."""

    def run(
        self,
        text: str,
        kind: str,
        output: str | None,
        is_terminal: bool = False,
        several: bool = False,
    ) -> None:
        """Write what queries return to a file or to stdout, up to the first that fails.

        Args:
            text: one query or, with `several`, queries with a semicolon behind each.
            kind: ``'table'``, ``'csv'``, ``'json'`` or ``'parquet'``.
            output: a file, replaced when the query has succeeded; None for stdout.
            is_terminal: shorten a table to the terminal, and escape control characters.

        Raises:
            OptionError: why there is no result.
            FormatError, OSError: the index or table cannot be read.
        """
        import duckdb

        from packidx.inspect.sql import (
            connect_locked,
            failure,
            one_select,
            time_limit,
            write_result,
        )

        target = None if output is None else Path(output).resolve()
        is_file = target is not None and (target.is_file() or not target.exists())
        folder = target.parent if target is not None and is_file else None
        views = self.asked.views(text)
        with (
            tempfile.TemporaryDirectory(prefix=".packidx-", dir=folder) as temporary,
            contextlib.ExitStack() as stack,
        ):
            result = os.path.join(temporary, "result")
            try:
                connection = stack.enter_context(connect_locked(views, result))
                listed = [text]
                if several:
                    found = [each.query for each in connection.extract_statements(text)]
                    listed = found or [_ALL_COLUMNS]
                for query in listed:
                    with status() as doing, time_limit(connection, self.timeout):
                        doing("running the query")
                        asked = one_select(connection, query)
                        if kind == "table":
                            shown = _table(connection.sql(asked), is_terminal)
                            Path(result).write_text(shown, encoding="utf-8")
                        else:
                            write_result(connection, asked, result, kind)
                    if target is not None and is_file:
                        os.replace(result, target)
                    else:
                        _copy(result, target, is_terminal)
            except (duckdb.Error, PackidxError) as error:
                raise OptionError(failure(error, text, views.absent)) from error


def _table(relation: Any, is_terminal: bool) -> str:
    """DuckDB's picture of a relation: the first and last rows, and how many there are."""
    width = shutil.get_terminal_size((100, 24)).columns if is_terminal else _WIDE
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        relation.show(max_rows=_MOST_ROWS, max_width=width)
    return visible(shown.getvalue().rstrip("\n") + "\n", lines=True)


def _copy(result: str, target: Path | None, is_terminal: bool) -> None:
    """Copy a result to stdout, or into a pipe or device."""
    if target is None and is_terminal:
        text = Path(result).read_text(encoding="utf-8").expandtabs(2)
        print_text(visible(text, lines=True))
        return
    with open(result, "rb") as file, contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if target is None else stack.enter_context(open(target, "wb"))
        shutil.copyfileobj(file, out)
        out.flush()


def _kind_of(output: str | None, is_terminal: bool) -> str:
    if output is None:
        return "table" if is_terminal else "csv"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"-o {output}: say what to write with --format, or end it in {known}")
    return _SUFFIXES[suffix]


def _check_folder(output: str) -> None:
    """Raise an OptionError where the folder of the file does not exist."""
    folder = Path(output).resolve().parent
    if not folder.is_dir():
        raise OptionError(f"-o {output}: the folder {folder} does not exist")
