"""The process that `packidx sql` runs a query in: one that takes too long or too much is ended.

No engine lets go of every query when it is told to, and none counts all the memory that functions
take; the system ends a process and bounds its memory.
"""

from __future__ import annotations

import csv
import decimal
import io
import json
import math
import os
import re
import resource
import shutil
import sys
import textwrap
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from packidx.errors import OptionError, PackidxError

from .show.console import format_table, json_text, visible
from .startup import stated_memory

_BLOCK = 1 << 20  # bytes of a message


def main() -> None:
    """Answer one request over the socket whose number is the only argument.

    A request is a JSON object: ``views``, ``query``, ``kind``, ``most`` rows to show, ``unlocked``
    and ``memory_limit``. The answer is messages that begin with ``d`` (bytes of the
    result), and one with ``.`` (done) or ``e`` (why not).
    """
    socket = Connection(int(sys.argv[1]))
    failure = _import_engine()  # while the index is opened
    try:
        request = json.loads(socket.recv_bytes())
    except EOFError:  # there is no such index
        os._exit(1)
    threading.Thread(target=_end_with_parent, args=(socket,), daemon=True).start()
    absent = request["views"]["absent"]
    try:
        if failure is not None:
            raise failure
        _answer(request, absent, socket)
        socket.send_bytes(b".")
    except MemoryError:
        socket.send_bytes(b"e" + _NO_MEMORY.encode())
    except Exception as error:
        if os.environ.get("PACKIDX_TRACEBACK"):
            traceback.print_exc()
        socket.send_bytes(
            b"e" + _words(error, request["query"], absent).encode(errors="backslashreplace")
        )
    sys.stdout.flush()
    os._exit(0)  # threads of the engine may be busy with what nobody wants any more


_NO_MEMORY = "the query or its result takes more memory than --memory-limit: ask for less at a time"


def _import_engine() -> Exception | None:
    try:
        import packidx.inspect.query  # noqa: F401
    except Exception as error:
        return error
    return None


def _end_with_parent(socket: Connection) -> None:
    try:
        socket.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _answer(request: dict[str, Any], absent: dict[str, str], socket: Connection) -> None:
    from packidx.index.tables import Views
    from packidx.inspect.query import check, connect

    unlocked, limit = request["unlocked"], request["memory_limit"]
    # The engine's own limit comes first: what it says is of more use.
    views = Views.read(request["views"])
    connection = connect(views, unlocked, limit and limit * 3 // 4)
    absent |= views.absent
    if limit is not None:
        _bound_memory(limit)
    query = request["query"]
    if not unlocked:
        query = check(connection, query)
    relation = connection.sql(query)
    if request["kind"] == "parquet" and relation is not None:
        _send_parquet(relation, socket)
    else:
        data = memoryview(_text(relation, request["kind"], request["most"]).encode())
        for start in range(0, len(data), _BLOCK):
            socket.send_bytes(b"d" + data[start : start + _BLOCK])
    connection.close()  # what an unlocked query attached is written


def _text(relation: Any, kind: str, most: int | None) -> str:

    if relation is None:  # a statement without rows
        return "[]\n" if kind == "json" else ""
    if most is not None:
        return as_short_table(relation.columns, _rows(relation, most + 1), most)
    return FORMATS[kind](relation.columns, _rows(relation))


def _bound_memory(limit: int) -> None:
    """Let this process take `limit` more bytes (Linux; elsewhere the engine's own limit holds)."""
    taken = stated_memory("VmData")
    if taken is None:
        return
    bound = taken + limit
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or bound < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def _send_parquet(relation: Any, socket: Connection) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    class Sink(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            socket.send_bytes(b"d" + bytes(data))
            return len(data)

    try:
        # Older releases of DuckDB have it under its former name alone.
        older = not hasattr(relation, "to_arrow_reader")
        read = relation.fetch_arrow_reader if older else relation.to_arrow_reader
        reader = read(1 << 16)
        with pq.ParquetWriter(Sink(), reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise OptionError(f"the query failed: {error}; cast that column to VARCHAR") from None
    except pa.ArrowException as error:
        raise OptionError(f"the query failed: {error}") from None


def _rows(relation: Any, most: int | None = None) -> list[tuple[Any, ...]]:
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


def _words(error: Exception, query: str, absent: dict[str, str]) -> str:
    """What went wrong, as one sentence."""
    if isinstance(error, PackidxError):
        words = str(error)
        for name, why in absent.items():
            if words.startswith(f"the query asks {name!r}"):
                return f"the query failed: {why}"
        return words
    first = " ".join(str(error).split("\n\n")[0].split())
    if type(error).__name__ == "OutOfMemoryException":  # DuckDB's
        return f"the query takes more memory than --memory-limit allows: {first}"
    for name, why in absent.items():
        if f"name {name} does not exist" in first:
            first = why
    if "syntax error" in first and re.search(r"\b(window|group|offset)\b", query, re.I):
        first += '; the columns "window", "group" and "offset" need double quotes'
    return f"the query failed: {first}"


_LONGEST = 40  # characters of a value in a table that is too wide
_FEW = 3  # columns that a terminal has room for, if their values go on below
_HINT = "For all of it: --format csv or json, at the prompt .mode csv or json."


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


if __name__ == "__main__":
    main()
