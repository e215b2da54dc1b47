"""SQL over views of an index or a lengths table, locked by DuckDB itself.

A query is one SELECT. The engine opens no file but those of the views, writes none, loads no
extension and takes no setting any more; a timer interrupts it, and its memory is bounded.
"""

from __future__ import annotations

import contextlib
import re
import resource
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import duckdb

from packidx.errors import NotFoundInIndex, OptionError, PackidxError, SourceError
from packidx.format.lengths import KnownTable, known_table
from packidx.format.parquet import pattern_of, quoted
from packidx.format.step_log import LOG_VIEWS, log_files
from packidx.index import Index, open_index
from packidx.index.frames import create_views
from packidx.index.tables import (
    OF_LENGTHS,
    VIEWS,
    StepOptions,
    Steps,
    Views,
    paths_of,
    views_of_index,
    views_of_lengths,
)
from packidx.io import urls

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """An index at one snapshot, or a lengths table."""

    path: str
    index: Index | None
    lengths: KnownTable | None
    steps: Steps | None
    """Of the view `steps`."""
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

    @contextlib.contextmanager
    def views(self, query: str) -> Iterator[Views]:
        """Give what `query` may read, as long as the block.

        Args:
            query: tables in an object store that it does not name are left out, unless it names
                none; the steps are computed only where it names them.

        Raises:
            FormatError: a file is missing or damaged.
            OSError: a store cannot be asked.
        """
        named = {name for name in self.names if re.search(rf"\b{name}\b", query, re.I)}
        with contextlib.ExitStack() as stack:
            if self.lengths is not None:
                yield views_of_lengths(stack, self.lengths, self.path)
            elif self.index is not None:
                steps = self.steps if "steps" in named else None
                yield views_of_index(stack, self.index, named or set(VIEWS), steps, self.log)


def asked(
    path: str, roots: Mapping[str, str], log: str | None = None, **steps: Unpack[StepOptions]
) -> Asked:
    """Open what is at `path`.

    Args:
        path: ``INDEX``, ``INDEX@ID``, or what `packidx plan` takes for lengths.
        roots: ``{old: new}`` path prefixes, for data that has moved.
        log: folder of a run's log of its steps, which trained on this snapshot.
        steps: of the view `steps`.

    Raises:
        SourceError: there is no log, or it is of other snapshots.
        NotFoundInIndex: there is no index, and no lengths table.
        FormatError: a manifest that is broken or of a newer version.
        OptionError: `steps` make no sense together.
        OSError: a store cannot be asked.
    """
    try:
        index = open_index(path, roots)
    except NotFoundInIndex:
        if log is not None:
            raise
        with contextlib.suppress(SourceError):
            return Asked(path, None, known_table(urls.local_path(path)), None)
        raise
    files = () if log is None else tuple(log_files(log, index.id))
    return Asked(path, index, None, Steps.of(index.snapshot, **steps), files)


def connect(
    views: Views, unlocked: bool = True, memory_limit: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A database with `views`, of which it tells in `absent` those that cannot be.

    Args:
        unlocked: leave the engine as DuckDB has it, but for Python's objects in this process.
        memory_limit: bytes.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    config: dict[str, Any] = {"python_enable_replacements": False}
    if memory_limit is not None:
        config["memory_limit"] = f"{memory_limit}B"
    if not unlocked:
        # Nothing on disk: queries that outgrow the memory are told so.
        config |= {"temp_directory": "", "max_temp_directory_size": "0KB"}
        config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(config=config)
    connection.execute("SET enable_progress_bar = false")  # it is drawn on stdout
    create_views(connection, views)
    if not unlocked:
        allowed = dict.fromkeys([*views.paths, *map(pattern_of, views.paths)])
        connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


@contextlib.contextmanager
def tables_of(tables: Mapping[str, tuple[Index, str]]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with tables of indexes, each by a name of its own, as long as the block.

    What outgrows the memory goes into a folder among the system's temporary files.

    Raises:
        FormatError: a file is missing or damaged.
    """
    with contextlib.ExitStack() as stack:
        views = {
            name: (table, paths_of(stack, index, table)) for name, (index, table) in tables.items()
        }
        connection = stack.enter_context(connect(Views(tables=views)))
        spilled = stack.enter_context(tempfile.TemporaryDirectory(prefix="packidx-"))
        connection.execute(f"SET temp_directory = {quoted(spilled)}")
        yield connection


def rows_of(connection: duckdb.DuckDBPyConnection, query: str, **values: Any) -> list[Row]:
    """Return the rows of a query by the names of their columns."""
    found = connection.execute(query, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


UNLOCKED = "with --unlocked a query may do all that DuckDB can"
_READ = """SELECT tree ->> '$.error_message', tree ->> '$..table_name',
    list_concat(tree ->> '$..schema_name', tree ->> '$..catalog_name'),
    tree ->> '$..function.function_name', tree ->> '$..function_name'
    FROM (SELECT json_serialize_sql(?) AS tree)"""
_TABLE_FUNCTIONS = ("range", "generate_series", "unnest", "repeat_row")
_TELLS = re.compile("current_setting|pg_.*|(col|obj|shobj)_description")
"""Functions that tell of the engine, and macros that read its catalogue."""


def one_select(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """The text to run of a query that is one SELECT over the views: DuckDB would write to the files
    that it may read, and its own catalogue has settings and paths.

    Args:
        connection: a locked one (`connect`), as releases of DuckDB compute arguments of a PRAGMA
            when they take a query apart.
        query: what is to be run.

    Raises:
        OptionError: with what is refused.
        duckdb.ParserException: the query is not SQL.
    """
    found = connection.extract_statements(query)
    pivot = re.search(r"\bPIVOT\b", query, re.I)  # which may be several statements
    hint = "; a PIVOT needs ON column IN ('a', 'b')" if pivot else ""
    if len(found) != 1:
        raise OptionError(f"the query holds {len(found)} statements: give one at a time{hint}")
    if (kind := found[0].type.name) != "SELECT":
        raise OptionError(
            f"the query is a {kind} statement, and only SELECT is allowed: {UNLOCKED}{hint}"
        )
    select = found[0].query
    own = connection.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal")
    refused = {name for (name,) in own.fetchall()} - {"tables", "columns"}  # which name no file
    [(error, tables, schemas, made, called)] = connection.execute(_READ, [select]).fetchall()
    if error:
        raise OptionError(f"the query failed: {error}")
    locked = [
        *(name for name in schemas if name.lower() not in ("", "main", "information_schema")),
        *(name for name in tables if name.lower() in refused or name.startswith("__")),
        *(name for name in made if name not in _TABLE_FUNCTIONS),
        *(name for name in called if _TELLS.fullmatch(name.lower())),
    ]
    if locked:
        raise OptionError(f"the query reads {locked[0]}, which is not allowed: {UNLOCKED}")
    return str(select)


@contextlib.contextmanager
def limited(
    connection: duckdb.DuckDBPyConnection, seconds: int | None, memory: int | None
) -> Iterator[None]:
    """Interrupt what `connection` runs in the block after so long, and bound what it takes.

    Args:
        seconds: None for no end.
        memory: bytes that this process may take besides what it has; None for no bound. Functions
            take memory that the engine does not count. Where the system states none (other than
            Linux), the engine's own limit holds.

    Raises:
        OptionError: the time or the memory was over.
    """
    is_over = threading.Event()

    def interrupt() -> None:
        is_over.set()
        connection.interrupt()

    timer = None if seconds is None else threading.Timer(seconds, interrupt)
    before, taken = resource.getrlimit(resource.RLIMIT_DATA), _data_bytes()
    if memory is not None and taken is not None:
        hard = before[1]
        bound = taken + memory
        if hard == resource.RLIM_INFINITY or bound < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        if timer is not None:
            timer.daemon = True
            timer.start()
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if "interrupt" not in str(error).lower():
            raise
        if not is_over.is_set():  # by Ctrl-C, of which DuckDB makes an error of its own
            raise KeyboardInterrupt from error
        raise OptionError(
            f"the query was stopped after {seconds} seconds: ask for less, or give it more with "
            "--timeout SECONDS"
        ) from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        first = " ".join(str(error).split("\n\n")[0].split())
        raise OptionError(
            f"the query or its result takes more memory than --memory-limit allows: {first}"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        if timer is not None:
            timer.cancel()


def _data_bytes() -> int | None:
    """Bytes of data that this process has, as Linux states them; None elsewhere."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    return None


def failure(error: duckdb.Error | PackidxError, query: str, absent: Mapping[str, str]) -> str:
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
