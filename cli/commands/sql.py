"""`packidx sql`: DuckDB over a snapshot's Parquet files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError, PackidxError

from ..options import option, root_option
from ..show.console import escape_unseen, print_line, print_text, show_status

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked


_MOST_ROWS = 100  # of a table on a terminal
_WIDE = 10_000
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


@click.command()
@click.argument("index")
@click.argument("query", required=False)
@option("--log DIR", "A run's log of its steps (StepLog): adds what it says.")
@option(
    "--timeout SECONDS",
    "Stop QUERY after this many seconds.",
    type=click.IntRange(1, 1_000_000),
    default=60,
    show_default=True,
)
@option(
    "--format kind table|csv|json|parquet",
    "How to print.  [default: by the name of FILE; else table on a terminal, csv on a pipe]",
)
@option("-o --output FILE", "Write to FILE instead of stdout.")
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
    from packidx.inspect.sql import open_target as opened

    is_terminal = sys.stdout.isatty() and output is None
    if kind is None and output is None:
        kind = "table" if is_terminal else "csv"
    elif kind is None and (kind := _SUFFIXES.get(Path(str(output)).suffix.lower())) is None:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"-o {output}: say what to write with --format, or end it in {known}")
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    if output is not None and not (folder := Path(output).resolve().parent).is_dir():
        raise OptionError(f"-o {output}: the folder {folder} does not exist")
    with show_status():
        asked = opened(index, roots, log)

    def run_text(text: str, several: bool = True) -> None:
        _run_queries(asked, text, kind, None if output is None else Path(output), timeout, several)

    if query is None and sys.stdin.isatty() and is_terminal:
        _ask_queries(asked, run_text)
        return
    is_read = query == "-" or (query is None and not sys.stdin.isatty())
    text = (sys.stdin.read() if is_read else query or "").strip() or _ALL_COLUMNS
    run_text(text, is_read and output is None)


_ALL_COLUMNS = (
    "SELECT table_name AS view, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'main'"
)


_ENDS = ("quit", "exit", ".quit", ".exit")
_HELP = "a semicolon ends a query; .tables lists the views, .schema their columns, .quit ends"


def _ask_queries(asked: Asked, run: Callable[[str], None]) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``."""
    import readline  # noqa: F401  (which `input` then edits lines by)

    print_line(f"{asked.title}: views are {', '.join(asked.names)}; {_HELP}")
    own: dict[str, Callable[[], None]] = {
        ".tables": lambda: print_line("  ".join(asked.names)),
        ".schema": lambda: run(_ALL_COLUMNS),
        **dict.fromkeys(("help", ".help"), lambda: print_line(_HELP)),
    }
    text = ""
    while True:
        try:
            text += input("    ...> " if text else "packidx> ") + "\n"
            word = text.strip().lower()
            if word in _ENDS:
                break
            command = own.get(word.rstrip(";"), own["help"] if word.startswith(".") else None)
            if word and command is None and not word.endswith(";"):
                continue
            if command is not None:
                command()
            elif word:
                run(text)
        except EOFError:
            break
        except KeyboardInterrupt:  # what was typed is given up
            print_line("")
        except (PackidxError, OSError) as error:
            print_line(str(error), err=True)
        text = ""


def _run_queries(
    asked: Asked, text: str, kind: str, output: Path | None, timeout: int, several: bool
) -> None:
    """Write what queries return to a file or to stdout, up to the first that fails.

    Args:
        text: one query or, with `several`, queries with a semicolon behind each.
        kind: ``'table'``, ``'csv'``, ``'json'`` or ``'parquet'``.
        output: a file, replaced when the query has succeeded; None for stdout.
        timeout: seconds of a query.

    Raises:
        OptionError: why there is no result.
        FormatError, OSError: the index or table cannot be read.
    """
    import duckdb

    from packidx.inspect.sql import (
        connect_locked,
        explain_failure,
        one_select,
        time_limit,
        write_result,
    )

    is_new = output is not None and (output.is_file() or not output.exists())
    views = asked.views(text)
    with (
        tempfile.TemporaryDirectory(
            prefix=".packidx-", dir=output.resolve().parent if output and is_new else None
        ) as temporary,
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
                with show_status() as doing, time_limit(connection, timeout):
                    doing("running the query")
                    selected = one_select(connection, query)
                    if kind == "table":
                        shown = _draw_table(connection.sql(selected), output is None)
                        Path(result).write_text(shown, encoding="utf-8")
                    else:
                        write_result(connection, selected, result, kind)
                if output is not None and is_new:
                    os.replace(result, output.resolve())
                else:
                    _copy_result(result, output)
        except (duckdb.Error, PackidxError) as error:
            raise OptionError(explain_failure(error, text, views.absent)) from error


def _draw_table(relation: Any, is_shown: bool) -> str:
    """DuckDB's picture of a relation: the first and last rows, and how many there are."""
    is_narrow = is_shown and sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if is_narrow else _WIDE
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        relation.show(max_rows=_MOST_ROWS, max_width=width)
    return escape_unseen(shown.getvalue().rstrip("\n") + "\n", lines=True)


def _copy_result(result: str, output: Path | None) -> None:
    """Copy a result to stdout, or into a pipe or device."""
    if output is None and sys.stdout.isatty():
        text = Path(result).read_text(encoding="utf-8").expandtabs(2)
        print_text(escape_unseen(text, lines=True))
        return
    with open(result, "rb") as file, contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if output is None else stack.enter_context(open(output, "wb"))
        shutil.copyfileobj(file, out)
        out.flush()
