"""`packidx sql`: DuckDB over the snapshot's Parquet files."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packidx.errors import OptionError

from ..options import quiet_option, root_option
from ..show.console import print_text, status, visible

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
_TIMEOUT, _MEMORY = 60.0, "4GB"  # of a locked query
_LONGEST = 1e6  # seconds; the system waits no longer than 2^31 milliseconds at once


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= _LONGEST:  # nan is neither
        raise click.BadParameter(f"{value:g} is no number above 0 and up to {_LONGEST:,.0f}.")
    return value


class _Query(click.Command):
    """A query that begins with a comment is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name for param in self.params for name in param.opts}
        for at, arg in enumerate(args):
            words = arg.split()
            is_option = not words or words[0].partition("=")[0] in options
            if arg.startswith("--") and not is_option and words != [arg]:
                args[at] = "\n" + arg
        return super().parse_args(ctx, args)


@click.command(cls=_Query)
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
    "--unlocked",
    is_flag=True,
    help="Let QUERY do all that DuckDB can: read and write files, attach, set, install.",
)
@click.option(
    "--timeout",
    type=float,
    callback=_seconds,
    metavar="SECONDS",
    help="Stop QUERY after so long.  [default: 60; none with --unlocked]",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory that QUERY may take, as 500MB.  [default: 4GB; none with --unlocked]",
)
@root_option
@quiet_option
def sql(
    index: str,
    query: str | None,
    kind: str | None,
    output: str | None,
    unlocked: bool,
    timeout: float | None,
    memory_limit: str | None,
    roots: dict[str, str],
    quiet: bool,
) -> None:
    """Run QUERY over INDEX, INDEX@ID or LENGTHS; "-" reads it from stdin, without it list columns.

    The views are packs, samples and dropped, and lengths where that table is still there. QUERY is
    a SELECT, which sees nothing but them. Of what is in an object store, only the tables that QUERY
    names are fetched.
    """
    kind = kind or _kind_of(output)
    if kind == "parquet" and not output:
        raise click.UsageError("--format parquet needs -o FILE")
    if query is None or not query.strip():
        query = "SELECT table_name AS view, column_name, data_type FROM information_schema.columns"
    elif query == "-":
        query = sys.stdin.read()
    request = {"query": query, "kind": kind, "unlocked": unlocked}
    request["memory_limit"] = _bytes(memory_limit or (None if unlocked else _MEMORY))
    timeout = timeout or (None if unlocked else _TIMEOUT)
    file, text = _file_of(output), b""
    with status(quiet) as doing, _process() as socket:  # it starts while the index is opened
        from packidx.inspect.sql import views_of
        from packidx.io.files import atomic_file

        with views_of(index, roots, query) as views:
            doing("running the query")
            answer = _answer(socket, request | vars(views), timeout)
            if file is None:
                text = b"".join(answer)
            else:
                with atomic_file(file) as out:
                    out.writelines(answer)
    if file is None:  # once the status has left the terminal
        _show(text, output, kind)


def _kind_of(output: str | None) -> str:
    if output is None:
        return "table"
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


@contextlib.contextmanager
def _process() -> Iterator[Connection]:
    """A process that answers one query, over this socket; it ends with the block."""
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    number = theirs.fileno()
    command = [sys.executable, "-P", "-m", "packidx_cli.query", str(number)]
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for us
    try:
        process = subprocess.Popen(command, pass_fds=[number])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.wait()
        ours.close()


def _answer(socket: Connection, request: dict[str, Any], timeout: float | None) -> Iterator[bytes]:
    """The result, in blocks of bytes.

    Raises:
        OptionError: why there is none.
    """
    end = None if timeout is None else time.monotonic() + timeout
    try:
        socket.send_bytes(json.dumps(request).encode())
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not socket.poll(left):
                raise OptionError(
                    f"the query was stopped after {timeout:g} seconds: ask for less, or give it "
                    "more with --timeout SECONDS"
                )
            message = socket.recv_bytes()
            if message[:1] == b"e":
                raise OptionError(message[1:].decode())
            if message[:1] == b".":
                return
            yield message[1:]
    except (EOFError, ConnectionError):
        raise OptionError(
            "the query ended its process, most likely for want of memory: ask for less at a time, "
            "or give it more with --memory-limit SIZE"
        ) from None


def _file_of(output: str | None) -> Path | None:
    """The file to write as a whole; None for stdout and what else `output` names: a pipe, a device.

    Raises:
        OptionError: its folder does not exist.
    """
    if output is None:
        return None
    target = Path(output).resolve()
    if target.exists() and not target.is_file():
        return None
    if not target.parent.is_dir():
        raise OptionError(f"-o {output}: the folder {target.parent} does not exist")
    return target


def _show(data: bytes, output: str | None, kind: str) -> None:
    """To stdout, or into what `output` names that is no file."""
    if output is None:
        text = data.decode()
        # CSV is data: a program gets it as it is, and has no escape to undo. A terminal does not.
        print_text(visible(text, lines=True) if kind == "csv" and sys.stdout.isatty() else text)
        return
    with open(output, "wb") as file:
        file.write(data)
