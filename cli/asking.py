"""Queries of `packidx sql`, each run in a locked process of its own (`query.py`)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from packidx.errors import OptionError

from .show.console import print_text, status, visible

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked

_MOST_ROWS = 100  # of a table on a terminal


@dataclass(frozen=True)
class Limits:
    """What a query may do, and take."""

    unlocked: bool
    timeout: float | None
    """Seconds."""
    memory: int | None
    """Bytes."""


class Asker:
    """Runs queries under the same limits; the process of the next one starts ahead of it.

    A block: processes end with it.
    """

    def __init__(self, limits: Limits, quiet: bool) -> None:
        self.limits = limits
        self.quiet = quiet
        self._next: _Process | None = None

    def __enter__(self) -> Asker:
        self._next = _Process()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._next is not None:
            self._next.end()
            self._next = None

    def show(self, asked: Asked, query: str, kind: str) -> None:
        """Run a query, and print what it gives; on a terminal, a table of so many rows at most.

        Raises:
            OptionError: why there is no result.
            FormatError, OSError: what is asked cannot be read.
        """
        is_terminal = sys.stdout.isatty()  # while it is no proxy of the status
        most = _MOST_ROWS if kind == "table" and is_terminal else None
        with status(self.quiet) as doing:
            doing("running the query")
            text = b"".join(self.answer(asked, query, kind, most)).decode()
        # Once the status has left the terminal. CSV is data: a program gets it as it is, and has no
        # escape to undo. A terminal does not.
        print_text(visible(text, lines=True) if kind == "csv" and is_terminal else text)

    def answer(
        self, asked: Asked, query: str, kind: str, most: int | None = None
    ) -> Iterator[bytes]:
        """The result of a query in the form `kind`, in blocks of bytes.

        Args:
            most: rows of a table that are shown.

        Raises:
            OptionError: why there is none.
            FormatError, OSError: what is asked cannot be read.
        """
        process, self._next = self._next or _Process(), None
        request = {
            "query": query,
            "kind": kind,
            "most": most,
            "unlocked": self.limits.unlocked,
            "memory_limit": self.limits.memory,
        }
        try:
            with asked.views(query) as views:
                yield from process.answer(request | {"views": views.to_json()}, self.limits.timeout)
        finally:
            process.end()
        self._next = _Process()


class _Process:
    """A process that answers one query."""

    def __init__(self) -> None:
        from multiprocessing import Pipe

        self._socket, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, "-P", "-m", "packidx_cli.query", str(number)]
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for us
        try:
            self._process = subprocess.Popen(command, pass_fds=[number])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()

    def end(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def answer(self, request: dict[str, Any], timeout: float | None) -> Iterator[bytes]:
        """The result, in blocks of bytes.

        Raises:
            OptionError: why there is none.
        """
        end = None if timeout is None else time.monotonic() + timeout
        try:
            self._socket.send_bytes(json.dumps(request).encode())
            while True:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not self._socket.poll(left):
                    raise OptionError(
                        f"the query was stopped after {timeout:g} seconds: ask for less, or give "
                        "it more with --timeout SECONDS"
                    )
                message = self._socket.recv_bytes()
                if message[:1] == b"e":
                    raise OptionError(message[1:].decode())
                if message[:1] == b".":
                    return
                yield message[1:]
        except (EOFError, ConnectionError):
            raise OptionError(
                "the query ended its process, most likely for want of memory: ask for less at a "
                "time, or give it more with --memory-limit SIZE"
            ) from None
