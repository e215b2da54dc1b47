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
from ..show import console

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
    packidx sql index/

    The views are packs, samples, dropped, sources and steps (the packs in the order of training,
    as planned), and lengths and rejected if that table is still there; with --log also losses,
    outliers and logged_steps. QUERY is a SELECT and sees these views alone. Where there is no
    terminal to ask at, the columns are listed. Of an object store only the tables that QUERY names
    are fetched.
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
    path = None if output is None else Path(output).resolve()
    if path is not None and not (path.is_file() if path.exists() else path.parent.is_dir()):
        raise OptionError(f"-o {output}: name a regular file, in a folder that exists")
    with console.show_status():
        asked = opened(index, roots, log)

    def run_text(text: str) -> None:
        _run_query(asked, text, kind, path, timeout)

    if query is None and sys.stdin.isatty() and is_terminal:
        _ask_queries(asked, run_text)
    else:
        run_text((query or "").strip() or _ALL_COLUMNS)


_ALL_COLUMNS = (
    "SELECT table_name AS view, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'main'"
)


_ENDS = ("quit", "exit", ".quit", ".exit")
_HELP = "a semicolon ends a query; .tables lists the views, .schema their columns, .quit ends"


def _ask_queries(asked: Asked, run: Callable[[str], None]) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``."""
    import readline  # noqa: F401  (which `input` then edits lines by)

    console.print_line(f"{asked.title}: views are {', '.join(asked.names)}; {_HELP}")
    own: dict[str, Callable[[], None]] = {
        ".tables": lambda: console.print_line("  ".join(asked.names)),
        ".schema": lambda: run(_ALL_COLUMNS),
        **dict.fromkeys(("help", ".help"), lambda: console.print_line(_HELP)),
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
            console.print_line("")
        except (PackidxError, OSError) as error:
            console.print_line(str(error), err=True)
        text = ""


def _run_query(asked: Asked, text: str, kind: str, output: Path | None, timeout: int) -> None:
    """Write what a query returns to a file, which is replaced when it has succeeded, or to stdout.
    Raise an OptionError if there is no result."""
    import duckdb

    from packidx.inspect import sql as inspected

    views = asked.views(text)
    place = output.parent if output else None
    with tempfile.TemporaryDirectory(prefix=".packidx-", dir=place) as temporary:
        result = os.path.join(temporary, "result")
        try:
            with (
                inspected.connect_locked(views, result) as connection,
                console.show_status() as doing,
                inspected.time_limit(connection, timeout),
            ):
                doing("running the query")
                selected = inspected.one_select(connection, text)
                if kind == "table":
                    shown = _draw_table(connection.sql(selected), output is None)
                    Path(result).write_text(shown, encoding="utf-8")
                else:
                    inspected.write_result(connection, selected, result, kind)
        except (duckdb.Error, PackidxError) as error:
            raise OptionError(inspected.explain_failure(error, text, views.absent)) from error
        if output is not None:
            os.replace(result, output)
        elif sys.stdout.isatty():
            lines = Path(result).read_text(encoding="utf-8").expandtabs(2)
            console.print_text(console.escape_unseen(lines, lines=True))
        else:
            with open(result, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _draw_table(relation: Any, is_shown: bool) -> str:
    """DuckDB's picture of a relation: the first and last rows, and how many there are."""
    is_narrow = is_shown and sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if is_narrow else _WIDE
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        relation.show(max_rows=_MOST_ROWS, max_width=width)
    return console.escape_unseen(shown.getvalue().rstrip("\n") + "\n", lines=True)
