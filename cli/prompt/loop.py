"""The prompt itself: lines with history and completion, until Ctrl-D."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from packidx.errors import PackidxError
from packidx.io import cache

from ..asking import Asker
from ..show.console import say, warn
from .completion import Words
from .session import Session
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
