"""Options that several commands have, each said once, and several of them as one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """All `options`, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(what: str) -> Callable[[Command], Command]:
    """``-o DIR``, which must be given; `what` is its help."""
    return click.option(
        "-o", "--output", required=True, metavar="DIR", type=click.Path(), help=what
    )


root_option = click.option(
    "--root", "roots", multiple=True, metavar="OLD=NEW", help="Where moved data lies now."
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")


def json_option(what: str = "Print one JSON object.") -> Callable[[Command], Command]:
    """``--json``; `what` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=what)
