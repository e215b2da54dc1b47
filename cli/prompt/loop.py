"""The prompt itself: lines with history and completion, until Ctrl-D."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from packidx.errors import PackidxError
from packidx.format.index import TABLES
from packidx.format.schema import ALL_LENGTHS
from packidx.index.tables import SOURCES, STEPS
from packidx.io import cache

from ..asking import Asker
from ..show.console import say, warn
from .session import COMMANDS, MODES, Session
from .statements import statements

if TYPE_CHECKING:
    from packidx.inspect.sql import Asked

_WORDS = {"exit": ".quit", "quit": ".quit", "help": ".help"}
"""Commands that people write without their dot."""


def prompt(asker: Asker, asked: Asked, mode: str, **terminal: Any) -> None:
    """Ask for queries and answer them, until Ctrl-D or ``.quit``.

    Args:
        terminal: ``input`` and ``output`` of prompt_toolkit, others than the terminal's.
    """
    session = Session(asker, asked, mode)
    lines: PromptSession[str] = PromptSession(
        history=_history(),
        completer=Words(asked.names),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation="    ...> ",
        **terminal,
    )
    say(f"{asked.title}: .tables, .examples and .help say what to ask; Ctrl-D ends")
    going_on = True
    while going_on:
        try:
            text = lines.prompt("packidx> ")
        except KeyboardInterrupt:  # what was typed is given up
            continue
        except EOFError:
            return
        going_on = _run(session, text)


def _run(session: Session, text: str) -> bool:
    """Answer what was typed; whether to ask for more."""
    listed, _ = statements(_WORDS.get(text.strip().lower(), text), is_all=True)
    for statement in listed:
        try:
            if not session.run(statement):
                return False
        except KeyboardInterrupt:
            say("stopped", err=True)
            break
        except (PackidxError, OSError) as error:
            say(str(error), err=True)
            break
    return True


def is_complete(text: str) -> bool:
    """Whether Enter runs what was typed, and begins no further line."""
    listed, rest = statements(text)
    return not rest or text.strip().lower() in _WORDS or (rest.startswith(".") and not listed)


def _bindings() -> KeyBindings:
    """Enter ends what is complete; Alt-Enter begins a line all the same."""
    bindings = KeyBindings()

    @Condition
    def complete() -> bool:
        from prompt_toolkit.application import get_app

        return is_complete(get_app().current_buffer.text)

    @bindings.add("enter", filter=complete)
    def run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return bindings


def _history() -> History:
    """What was asked before, in a file of the cache that nobody else reads."""
    path = os.path.join(cache.folder(), "sql_history")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        os.chmod(path, 0o600)
    except OSError as error:
        warn([f"queries are not remembered: {path}: {error.strerror}"])
        return InMemoryHistory()
    return FileHistory(path)


_COLUMNS = {
    **{name: schema.names for name, schema in TABLES.items()},
    "lengths": ALL_LENGTHS.names,
    "rejected": ALL_LENGTHS.names,
    "sources": SOURCES.names,
    "steps": STEPS.names,
}
_QUOTED = {"window", "group", "offset"}  # words of SQL
_SQL = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DISTINCT", "JOIN"),
    *("USING", "LEFT JOIN", "ON", "AS", "AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL"),
    *("LIKE", "BETWEEN", "CASE WHEN", "THEN", "ELSE", "END", "DESC", "UNION ALL", "WITH", "OVER"),
    *("PARTITION BY", "EXPLAIN", "DESCRIBE", "SUMMARIZE"),
    *("count(*)", "sum(", "avg(", "min(", "max(", "median(", "quantile_cont(", "round("),
    *("any_value(", "list(", "unnest("),
)
_AFTER_FROM = re.compile(r"\b(?:FROM|JOIN)\s+\w*$", re.IGNORECASE)
_WORD = re.compile(r'[\w."]*$')


class Words(Completer):
    """Completes the word before the cursor."""

    def __init__(self, views: Iterable[str]) -> None:
        self.columns = {view: [_shown(name) for name in _COLUMNS[view]] for view in views}

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        for word, meaning in self._offered(before):
            typed = _typed(before)
            if word.lower().startswith(typed.lower()) and word != typed:
                yield Completion(word, -len(typed), display_meta=meaning)

    def _offered(self, before: str) -> Iterable[tuple[str, str]]:
        """Words and what they are, the likeliest first."""
        if before.lstrip().startswith("."):
            yield from self._of_commands(before.lstrip())
            return
        typed = _typed(before)
        view, dot, _ = typed.rpartition(".")
        if dot:
            for name in self.columns.get(view.lower(), []):
                yield f"{view}.{name}", "column"
            return
        if not typed:
            return
        if _AFTER_FROM.search(before):
            yield from ((view, "view") for view in self.columns)
            return
        asked = [view for view in self.columns if re.search(rf"\b{view}\b", before, re.I)]
        names = {name: "column" for view in asked or self.columns for name in self.columns[view]}
        yield from names.items()
        yield from ((view, "view") for view in self.columns)
        upper = typed.isupper()
        yield from ((word if upper else word.lower(), "") for word in _SQL)

    def _of_commands(self, before: str) -> Iterable[tuple[str, str]]:
        command, space, _ = before.partition(" ")
        if not space:
            yield from COMMANDS.items()
        elif command == ".schema":
            yield from ((view, "view") for view in self.columns)
        elif command == ".mode":
            yield from ((mode, "") for mode in MODES)


def _typed(before: str) -> str:
    """The word before the cursor."""
    word = _WORD.search(before)
    return word[0] if word else ""


def _shown(name: str) -> str:
    return f'"{name}"' if name in _QUOTED else name
