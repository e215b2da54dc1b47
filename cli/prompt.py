"""The prompt of `packidx sql`: lines that can be edited and called back, until Ctrl-D."""

from __future__ import annotations

import readline  # noqa: F401  (which `input` then edits lines by)
from collections.abc import Callable, Iterable

from packidx.errors import PackidxError

from .show.console import say

_ENDS = ("quit", "exit", ".quit")


def prompt(run: Callable[[str], None], views: Iterable[str], title: str) -> None:
    """Ask for queries and `run` them, until Ctrl-D or ``quit``.

    Args:
        run: prints what queries give.
        views: that can be asked.
        title: what is asked.
    """
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
