"""The prompt of `packidx sql`: lines with history and completion, until Ctrl-D."""

from __future__ import annotations

import os
import readline
from collections.abc import Callable, Iterable, Sequence

from packidx.errors import PackidxError
from packidx.format.index import TABLES
from packidx.format.schema import ALL_LENGTHS
from packidx.index.tables import SOURCES, STEPS
from packidx.io import cache

from .show.console import say, warn

_ENDS = ("quit", "exit", ".quit")
_COLUMNS = {
    name for schema in (*TABLES.values(), ALL_LENGTHS, SOURCES, STEPS) for name in schema.names
}
_SQL = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DISTINCT", "JOIN"),
    *("USING", "AS", "AND", "OR", "NOT", "IN", "IS NULL", "LIKE", "CASE WHEN", "THEN", "ELSE"),
    *("DESC", "UNION ALL", "WITH", "OVER", "DESCRIBE", "SUMMARIZE", "count(*)", "median("),
)


def prompt(run: Callable[[str], None], views: Iterable[str], title: str) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``.

    Args:
        run: prints what queries give.
        views: that can be asked; Tab completes them, their columns and words of SQL.
        title: what is asked.
    """
    words = [*views, *sorted(_COLUMNS), *_SQL]
    readline.set_completer(lambda begun, number: completed(words, begun, number))
    readline.set_completer_delims(" \t\n,;()\"'=<>.")
    readline.parse_and_bind("tab: complete")
    history = _history()
    say(f"{title}: views are {', '.join(views)}; a semicolon ends a query, Ctrl-D the prompt")
    text = ""
    while True:
        try:
            text += input("    ...> " if text else "packidx> ") + "\n"
        except KeyboardInterrupt:  # what was typed is given up
            say("")
            text = ""
            continue
        except EOFError:
            break
        if text.strip().lower() in _ENDS:
            break
        if text.strip() and not text.rstrip().endswith(";"):
            continue
        try:
            if text.strip():
                run(text)
        except KeyboardInterrupt:
            say("stopped", err=True)
        except (PackidxError, OSError) as error:
            say(str(error), err=True)
        text = ""
    if history is not None:
        readline.write_history_file(history)


def completed(words: Sequence[str], begun: str, number: int) -> str | None:
    """Return the word of that number that begins so, in any case."""
    fitting = [word for word in words if word.lower().startswith(begun.lower())]
    return fitting[number] if number < len(fitting) else None


def _history() -> str | None:
    """Read what was asked before, of a file of the cache that nobody else reads; its path, None
    where there can be none."""
    path = os.path.join(cache.folder(), "sql_history")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        os.chmod(path, 0o600)
        readline.read_history_file(path)
    except OSError as error:
        warn([f"queries are not remembered: {path}: {error.strerror}"])
        return None
    return path
