"""The prompt of `packidx sql`: lines that can be edited and called back, until Ctrl-D."""

from __future__ import annotations

import readline  # noqa: F401  (which `input` then edits lines by)
from collections.abc import Callable, Iterable

from packidx.errors import PackidxError

from .show.console import say

_ENDS = ("quit", "exit", ".quit", ".exit")
_HELP = "a semicolon ends a query; .tables lists the views, .schema their columns, .quit ends"


def prompt(
    run: Callable[[str], None], views: Iterable[str], title: str, schema: Callable[[], None]
) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``.

    Args:
        run: prints the rows of queries.
        views: names of the views.
        title: the name of the index or table.
        schema: prints the columns of all views.
    """
    say(f"{title}: views are {', '.join(views)}; {_HELP}")
    own: dict[str, Callable[[], None]] = {
        ".tables": lambda: say("  ".join(views)),
        ".schema": schema,
        "help": lambda: say(_HELP),
        ".help": lambda: say(_HELP),
    }
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
        command = own.get(text.strip().rstrip(";").lower())
        if text.strip() and command is None and not text.rstrip().endswith(";"):
            continue
        try:
            if command is not None:
                command()
            elif text.strip():
                run(text)
        except KeyboardInterrupt:
            say("stopped", err=True)
        except (PackidxError, OSError) as error:
            say(str(error), err=True)
        text = ""
