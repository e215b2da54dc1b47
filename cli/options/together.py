"""Options that several commands have, each said once, and several of them as one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from packidx.errors import OptionError

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


def pairs_option(
    option: str, argument: str, form: str, what: str, meaning: str = ""
) -> Callable[[Command], Command]:
    """An option that may be repeated, the command's `argument`: a dict of its words.

    Args:
        option: its name, such as ``--column``.
        argument: of the command's function.
        form: what is to be written, as ``NAME=FIELD``.
        what: its help.
        meaning: the form in words, for the error.
    """

    def pairs_of(context: Any, parameter: Any, values: tuple[str, ...]) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for value in values:
            name, equals, word = value.partition("=")
            if not (name and equals and word):
                raise OptionError(f"{option} {value}: write {form}{meaning}")
            if name in pairs:
                raise OptionError(f"{option} {name} is given twice, {pairs[name]!r} and {word!r}")
            pairs[name] = word
        return pairs

    return click.option(option, argument, multiple=True, metavar=form, callback=pairs_of, help=what)


def roots_option(option: str, argument: str, what: str) -> Callable[[Command], Command]:
    """``OLD=NEW``: where what begins with one path lies now."""
    return pairs_option(option, argument, "OLD=NEW", what, ", a path prefix and what replaces it")


root_option = roots_option("--root", "roots", "Where moved data lies now.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")


def json_option(what: str = "Print one JSON object.") -> Callable[[Command], Command]:
    """``--json``; `what` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=what)
