"""The prompt of `packidx sql`: lines with history and completion, until Ctrl-D."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from packidx.errors import PackidxError
from packidx.format.index import TABLES
from packidx.format.schema import ALL_LENGTHS
from packidx.index.tables import SOURCES, STEPS
from packidx.io import cache

from .show.console import say, warn

_ENDS = ("quit", "exit", ".quit")
_COLUMNS = {
    **{name: schema.names for name, schema in TABLES.items()},
    "lengths": ALL_LENGTHS.names,
    "rejected": ALL_LENGTHS.names,
    "sources": SOURCES.names,
    "steps": STEPS.names,
}
_SQL = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DISTINCT", "JOIN"),
    *("USING", "AS", "AND", "OR", "NOT", "IN", "IS NULL", "LIKE", "CASE WHEN", "THEN", "ELSE"),
    *("DESC", "UNION ALL", "WITH", "OVER", "DESCRIBE", "SUMMARIZE", "count(*)", "median("),
)


def prompt(run: Callable[[str], None], views: Iterable[str], title: str, **terminal: Any) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``.

    Args:
        run: prints what queries give.
        views: that can be asked.
        title: what is asked.
        terminal: ``input`` and ``output`` of prompt_toolkit, others than the terminal's.
    """
    lines: PromptSession[str] = PromptSession(
        history=_history(),
        completer=completer(views),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation="    ...> ",
        **terminal,
    )
    say(f"{title}: views are {', '.join(views)}; a semicolon ends a query, Ctrl-D the prompt")
    while True:
        try:
            text = lines.prompt("packidx> ").strip()
        except KeyboardInterrupt:  # what was typed is given up
            continue
        except EOFError:
            return
        if text.lower() in _ENDS:
            return
        try:
            if text:
                run(text)
        except KeyboardInterrupt:
            say("stopped", err=True)
        except (PackidxError, OSError) as error:
            say(str(error), err=True)


def is_complete(text: str) -> bool:
    """Return whether Enter runs what was typed, and begins no further line."""
    return text.rstrip().endswith(";") or text.strip().lower() in ("", *_ENDS)


def completer(views: Iterable[str]) -> WordCompleter:
    """Completes views, their columns and words of SQL."""
    columns = dict.fromkeys(name for view in views for name in _COLUMNS[view])
    return WordCompleter([*views, *columns, *_SQL], ignore_case=True, pattern=re.compile(r"\w+"))


def _bindings() -> KeyBindings:
    """Enter ends what is complete; Alt-Enter begins a line all the same."""
    bindings = KeyBindings()

    @bindings.add("enter", filter=Condition(lambda: is_complete(get_app().current_buffer.text)))
    def run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return bindings


def _history() -> History:
    """Return what was asked before, in a file of the cache that nobody else reads."""
    path = os.path.join(cache.folder(), "sql_history")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        os.chmod(path, 0o600)
    except OSError as error:
        warn([f"queries are not remembered: {path}: {error.strerror}"])
        return InMemoryHistory()
    return FileHistory(path)
