"""`packidx sql`: DuckDB over a snapshot's Parquet files."""

from __future__ import annotations

import contextlib
import csv
import decimal
import io
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError, PackidxError

from ..options import (
    Decorator,
    GroupedCommand,
    OptionGroup,
    flag,
    grouped_command,
    log_option,
    option,
    quiet_option,
    root_option,
)
from ..show.console import json_text, print_text, status, visible

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked


_MOST_ROWS = 100  # of a table on a terminal
_WIDE = 10_000
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
_TIMEOUT, _MEMORY = 60, "4GB"  # of a locked query


class _Query(GroupedCommand):
    """A query that begins with a comment is not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name for param in self.params for name in param.opts}
        for at, arg in enumerate(args):
            words = arg.split()
            is_option = not words or words[0].partition("=")[0] in options
            if arg.startswith("--") and not is_option and words != [arg]:
                args[at] = "\n" + arg
        return super().parse_args(ctx, args)


def _of_steps(option: str, least: int, help: str) -> Decorator:
    """Return an option of the view steps, a number."""
    return click.option(
        option, type=click.IntRange(min=least), metavar="N", help=f"Of the view steps: {help}]"
    )


@grouped_command(
    click.argument("index"),
    click.argument("query", required=False),
    log_option,
    OptionGroup("the view steps", "--global-batch 512 --world-size 64 --epoch 0"),
    _of_steps("--seed", 0, "PackSampler's.  [default: 0"),
    _of_steps("--epoch", 0, "one epoch.  [default: each that was planned apart"),
    _of_steps("--global-batch", 1, "packs per step.  [default: what was planned for"),
    _of_steps("--world-size", 1, "data-parallel ranks.  [default: packs of a planned micro-step"),
    OptionGroup("what a query may do", "--timeout 600 --memory-limit 16GB"),
    flag(
        "--unlocked",
        "Let QUERY do all that DuckDB can: read and write files, attach, set, install.",
    ),
    option(
        "--timeout",
        "SECONDS",
        "Stop QUERY after so many seconds.  [default: 60; none with --unlocked]",
        type=click.IntRange(1, 1_000_000),
    ),
    option(
        "--memory-limit",
        "SIZE",
        "Memory that QUERY may take, such as 500MB.  [default: 4GB; none with --unlocked]",
    ),
    OptionGroup("output", "--format csv -o packs.csv"),
    option(
        "--format kind",
        None,
        "How to print.  [default: by the name of FILE; else table on a terminal, csv on a pipe]",
        type=click.Choice(["table", "csv", "json", "parquet"]),
    ),
    option("-o --output", "FILE", "Write to FILE instead of stdout."),
    root_option,
    quiet_option,
    cls=_Query,
)
def sql(
    index: str,
    query: str | None,
    kind: str | None,
    output: str | None,
    unlocked: bool,
    timeout: int | None,
    memory_limit: str | None,
    roots: dict[str, str],
    quiet: bool,
    log: str | None,
    **steps: Any,
) -> None:
    """Run QUERY over INDEX, INDEX@ID or LENGTHS. Without QUERY, ask at a prompt.

    \b
    packidx sql index/ "SELECT source, count(*) FROM samples GROUP BY 1"
    packidx sql index/ < queries.sql
    packidx sql index/

    The views are packs, samples, dropped, sources and steps (the packs in the order of training),
    and lengths and rejected if that table is still there; with --log also losses, outliers and
    logged_steps. QUERY is a SELECT and sees these views alone. "-" reads queries from stdin, each
    with its semicolon; so does a missing QUERY if stdin is not a terminal. Without any query the
    columns are listed. From an object store only the tables that QUERY names are fetched.
    """
    from packidx.inspect.sql import asked as opened

    is_terminal = sys.stdout.isatty()
    kind = kind or _kind_of(output, is_terminal)
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    if output is not None:
        _check_folder(output)
    with status(quiet):
        asked = opened(index, roots, log, **steps)
    asker = Asker(
        asked,
        unlocked,
        timeout or (None if unlocked else _TIMEOUT),
        _bytes(memory_limit or (None if unlocked else _MEMORY)),
        quiet,
    )

    def show(text: str) -> None:
        asker.run(text, kind, lambda data: print_text(data.decode()), is_terminal, several=True)

    if query is None and output is None and sys.stdin.isatty() and is_terminal:
        from ..prompt import prompt

        prompt(show, asked.names, asked.title)
        return
    is_read = query == "-" or (query is None and not sys.stdin.isatty())
    text = (sys.stdin.read() if is_read else query or "").strip() or _ALL_COLUMNS
    if output is not None:
        asker.run(text, kind, lambda data: _write(output, data))
    elif is_read:
        show(text)
    else:
        asker.run(text, kind, lambda data: print_text(data.decode()), is_terminal)


_ALL_COLUMNS = (
    "SELECT table_name AS view, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'main'"
)


@dataclass(frozen=True)
class Asker:
    """Runs queries over an index or a lengths table."""

    asked: Asked
    unlocked: bool
    timeout: int | None
    """Seconds of a query."""
    memory: int | None
    """Bytes that a query may take."""
    quiet: bool

    def run(
        self,
        text: str,
        kind: str,
        put: Callable[[bytes], None],
        is_terminal: bool = False,
        several: bool = False,
    ) -> None:
        """Put what queries give somewhere, up to the first that fails.

        Args:
            text: one query or, with `several`, queries with a semicolon behind each.
            kind: as in `rendered`.
            put: takes what a query gives, as it is printed or stands in a file.
            is_terminal: of a table the first rows are enough, and nothing steers the terminal.

        Raises:
            OptionError: why there is no result.
            FormatError, OSError: what is asked cannot be read.
        """
        import duckdb

        from packidx.inspect.sql import connect, failure, limited, one_select

        with self.asked.views(text) as views, contextlib.ExitStack() as stack:
            try:
                memory = self.memory and self.memory * 3 // 4
                connection = connect(views, self.unlocked, memory)
                stack.callback(connection.close)  # what an unlocked query attached is written
                listed = [text]
                if several:
                    found = [each.query for each in connection.extract_statements(text)]
                    listed = found or [_ALL_COLUMNS]
                for query in listed:
                    with (
                        status(self.quiet) as doing,
                        limited(connection, self.timeout, self.memory),
                    ):
                        doing("running the query")
                        asked = query if self.unlocked else one_select(connection, query)
                        data = rendered(connection.sql(asked), kind, is_terminal)
                    put(data)
            except (duckdb.Error, PackidxError) as error:
                raise OptionError(failure(error, text, views.absent)) from error


def _kind_of(output: str | None, is_terminal: bool) -> str:
    if output is None:
        return "table" if is_terminal else "csv"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"-o {output}: say what to write with --format, or end it in {known}")
    return _SUFFIXES[suffix]


def _bytes(size: str | None) -> int | None:
    from packidx.io.sizes import parse_size

    if size is None:
        return None
    limit = parse_size(size)
    if not limit:
        raise OptionError(f"--memory-limit {size}: give bytes, or a size such as 500MB")
    return limit


def _check_folder(output: str) -> None:
    """Raise an OptionError where the folder of the file does not exist."""
    folder = Path(output).resolve().parent
    if not folder.is_dir():
        raise OptionError(f"-o {output}: the folder {folder} does not exist")


def _write(output: str, data: bytes) -> None:
    """Write a file as a whole; into what `output` names that is not a file, a pipe or a device."""
    from packidx.io.files import atomic_file

    target = Path(output).resolve()
    is_file = target.is_file() or not target.exists()
    with atomic_file(target) if is_file else open(output, "wb") as out:
        out.write(data)


def rendered(relation: Any, kind: str, is_terminal: bool) -> bytes:
    """A DuckDB relation as CSV, JSON, Parquet or a table, which is DuckDB's picture of it: some of
    the rows, as many columns as a terminal has room for, and how many there are of both.

    Args:
        relation: None of a statement without rows.

    Raises:
        OptionError: the format has no such type, or two columns of one name.
    """
    if relation is None:
        return b"[]\n" if kind == "json" else b""
    if kind == "parquet":
        return as_parquet(relation)
    if kind == "table":
        width = shutil.get_terminal_size((100, 24)).columns if is_terminal else _WIDE
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            relation.show(max_rows=_MOST_ROWS, max_width=width)
        return visible(shown.getvalue().rstrip("\n") + "\n", lines=True).encode()
    rows = python_rows(relation)
    if kind == "json":
        return as_json(relation.columns, rows).encode()
    text = as_csv(relation.columns, rows)
    # CSV is data: a program gets it as it is, and has no escape to undo. A terminal does not.
    return (visible(text, lines=True) if is_terminal else text).encode()


def as_parquet(relation: Any) -> bytes:
    """A DuckDB relation as a Parquet file.

    Raises:
        OptionError: Parquet has no such type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    try:
        pq.write_table(relation.to_arrow_table(), buffer, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        raise OptionError(f"the query failed: {error}; cast that column to VARCHAR") from None
    except pa.ArrowException as error:
        raise OptionError(f"the query failed: {error}") from None
    return buffer.getvalue()


def python_rows(relation: Any) -> list[tuple[Any, ...]]:
    """Rows as Python values; times with a zone as text, which else need one more package."""
    names = ['"' + name.replace('"', '""') + '"' for name in relation.columns]
    zoned = ["TIME ZONE" in str(kind).upper() for kind in relation.types]
    if any(zoned):
        pairs = zip(names, zoned, strict=True)
        listed = (f"{name}::VARCHAR AS {name}" if is_zoned else name for name, is_zoned in pairs)
        relation = relation.project(", ".join(listed))
    rows: list[tuple[Any, ...]] = relation.fetchall()
    return rows


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
