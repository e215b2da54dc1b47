"""SQL over views of an index or a lengths table, locked by DuckDB itself.

A query is one SELECT. The engine opens no file but those of the views, writes none, loads no
extension and takes no setting any more; a timer interrupts it, and its memory is bounded.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from packidx.errors import NotFoundInIndex, OptionError, PackidxError, SourceError
from packidx.format.lengths import KnownTable, known_table
from packidx.format.parquet import pattern_of, quote_literal
from packidx.format.step_log import LOG_VIEWS, log_files
from packidx.index import Index, open_index
from packidx.index.frames import (
    OF_LENGTHS,
    VIEWS,
    Views,
    create_views,
    views_of_index,
)
from packidx.index.order import Steps
from packidx.io import urls

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """An index at one snapshot, or a lengths table."""

    path: str
    index: Index | None
    lengths: KnownTable | None
    log: tuple[str, ...] = ()
    """Files of a run's log of its steps."""

    @property
    def names(self) -> tuple[str, ...]:
        """The views that it may have."""
        of_log = LOG_VIEWS if self.log else ()
        return OF_LENGTHS if self.index is None else (*VIEWS, *of_log)

    @property
    def title(self) -> str:
        """Return what it is, in a few words."""
        return f"lengths table {self.path}" if self.index is None else repr(self.index)

    def views(self, query: str) -> Views:
        """Return what `query` may read.

        Args:
            query: tables in an object store that it does not name are left out, unless it names
                none; so are the steps.

        Raises:
            FormatError: a file is missing or damaged.
            OSError: a store cannot be asked.
        """
        if self.index is None:
            assert self.lengths is not None
            views = Views()
            views.add_lengths(self.lengths)
            if self.lengths.manifest is None:
                why = f"{self.path} is bare Parquet, which names no sources: ask its column source"
                views.absent["sources"] = f"there is no view sources: {why}, if it has one"
            else:
                views.add_sources(self.lengths.manifest, None)
            return views
        named = {name for name in self.names if re.search(rf"\b{name}\b", query, re.I)}
        steps = Steps.of(self.index.snapshot) if "steps" in named or not named else None
        return views_of_index(self.index, named or set(VIEWS), steps, self.log)


def open_target(path: str, roots: Mapping[str, str], log: str | None = None) -> Asked:
    """Open what is at `path`.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or what `packidx plan` takes for lengths.
        roots: ``{old: new}`` path prefixes, for data that has moved.
        log: folder of a run's log of its steps, which trained on this snapshot.

    Raises:
        SourceError: there is no log, or it is of other snapshots.
        NotFoundInIndex: there is no index, and no lengths table.
        FormatError: a manifest that is broken or of a newer version.
        OSError: a store cannot be asked.
    """
    try:
        index = open_index(path, roots)
    except NotFoundInIndex:
        if log is not None:
            raise
        with contextlib.suppress(SourceError):
            return Asked(path, None, known_table(urls.local_path(path)))
        raise
    return Asked(path, index, None, () if log is None else tuple(log_files(log, index.id)))


MEMORY_LIMIT = "4GB"
"""Memory that a query of a user may take."""


def connect_locked(views: Views, result: str) -> duckdb.DuckDBPyConnection:
    """Return a database that reads `views` and writes `result`, and touches no other file.

    Args:
        views: the tables to show; those that cannot be made are named in `views.absent`.
        result: path of a file.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    locks: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": "",
        "max_temp_directory_size": "0KB",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = open_database(views, locks)
    allowed = dict.fromkeys([*views.paths, *map(pattern_of, views.paths), result])
    connection.execute(f"SET allowed_paths = [{', '.join(map(quote_literal, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def open_database(
    views: Views, settings: Mapping[str, Any] | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a database with `views`; those that cannot be made are named in `views.absent`.

    Args:
        views: the tables to show.
        settings: of DuckDB, for a connection that is to be locked.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    connection = duckdb.connect(config={"python_enable_replacements": False, **(settings or {})})
    connection.execute("SET enable_progress_bar = false")  # it is drawn on stdout
    create_views(connection, views)
    return connection


@contextlib.contextmanager
def tables_of(tables: Mapping[str, tuple[Index, str]]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with tables of indexes, each by a name of its own, as long as the block.

    What outgrows the memory goes into a folder among the system's temporary files.

    Raises:
        FormatError: a file is missing or damaged.
    """
    views = Views()
    for name, (index, table) in tables.items():
        views.add_table(name, index, table)
    with open_database(views) as connection, tempfile.TemporaryDirectory("", "packidx-") as spilled:
        connection.execute(f"SET temp_directory = {quote_literal(spilled)}")
        yield connection


def rows_of(connection: duckdb.DuckDBPyConnection, query: str, **values: Any) -> list[Row]:
    """Return the rows of a query by the names of their columns."""
    found = connection.execute(query, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def one_select(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the text of a query that is one SELECT: no other statement is run while locked, since
    DuckDB may write to the files that it may read.

    Raises:
        OptionError: the query holds another statement, or not exactly one.
        duckdb.ParserException: the query is not SQL.
    """
    found = connection.extract_statements(query)
    pivot = re.search(r"\bPIVOT\b", query, re.I)  # which may be several statements
    hint = "; a PIVOT needs ON column IN ('a', 'b')" if pivot else ""
    if len(found) != 1:
        raise OptionError(f"the query holds {len(found)} statements: give one at a time{hint}")
    if (kind := found[0].type.name) != "SELECT":
        raise OptionError(f"the query is a {kind} statement, and only SELECT is allowed{hint}")
    return str(found[0].query)


def write_result(
    connection: duckdb.DuckDBPyConnection, query: str, path: str, file_format: str
) -> None:
    """Write the rows of a query to a file, as DuckDB writes them.

    Args:
        connection: one that may write to `path` (`connect_locked`).
        query: a SELECT.
        path: the file.
        file_format: ``'csv'``, ``'json'`` (an array of objects) or ``'parquet'``.

    Raises:
        duckdb.Error: the query fails, or the format has no such type.
    """
    connection.execute("CREATE SCHEMA IF NOT EXISTS __result")
    connection.execute(f"CREATE TABLE __result.rows AS {query}")
    options = {"csv": "csv, header", "json": "json, array", "parquet": "parquet, compression zstd"}
    copied = f"FORMAT {options[file_format]}, USE_TMP_FILE false"
    try:
        for name, kind, *_ in connection.execute("DESCRIBE __result.rows").fetchall():
            if file_format == "json" and kind in ("FLOAT", "DOUBLE"):  # no NaN, no infinity
                column = '"' + name.replace('"', '""') + '"'
                finite = f"{column} = NULL WHERE NOT isfinite({column})"
                connection.execute(f"UPDATE __result.rows SET {finite}")
        connection.execute(f"COPY __result.rows TO {quote_literal(path)} ({copied})")
    finally:
        connection.execute("DROP TABLE __result.rows")


@contextlib.contextmanager
def time_limit(connection: duckdb.DuckDBPyConnection, seconds: int) -> Iterator[None]:
    """Interrupt what `connection` runs in the block after `seconds`.

    Raises:
        OptionError: the time or the memory limit was exceeded.
    """
    is_over = threading.Event()

    def interrupt() -> None:
        is_over.set()
        connection.interrupt()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    try:
        timer.start()
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if "interrupt" not in str(error).lower():
            raise
        if not is_over.is_set():  # Ctrl-C, for which DuckDB raises an error of its own
            raise KeyboardInterrupt from error
        raise OptionError(
            f"the query was stopped after {seconds} seconds: ask for less, or give it more with "
            "--timeout SECONDS"
        ) from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        first = " ".join(str(error).split("\n\n")[0].split())
        raise OptionError(
            f"the query or its result takes more than {MEMORY_LIMIT} of memory: ask for less, or "
            f"read the Parquet files with DuckDB itself ({first})"
        ) from None
    finally:
        timer.cancel()


def explain_failure(
    error: duckdb.Error | PackidxError, query: str, absent: Mapping[str, str]
) -> str:
    """Return why there is no result, as one sentence.

    Args:
        error: what was raised.
        query: what was asked.
        absent: why a view is not there.
    """
    if isinstance(error, PackidxError):
        return str(error)
    first = " ".join(str(error).split("\n\n")[0].split())
    for name, why in absent.items():
        if f"name {name} does not exist" in first:
            first = why
    if "syntax error" in first and re.search(r"\b(window|group|offset)\b", query, re.I):
        first += '; the columns "window", "group" and "offset" need double quotes'
    return f"the query failed: {first}"
