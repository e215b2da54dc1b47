"""Options of the commands that read an index with the encoder it was counted with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from packidx.errors import OptionError

F = TypeVar("F", bound=Callable)

_OPTIONS = (
    click.option(
        "--processor", metavar="DIR_OR_NAME", help="The processor that counted the lengths."
    ),
    click.option(
        "--encode",
        metavar="MODULE:NAME",
        help="The user's own encoder that counted the lengths; NAME() calls NAME first.",
    ),
    click.option(
        "--transform",
        metavar="MODULE:NAME",
        help="The transform that the lengths were counted with.",
    ),
    click.option(
        "--root", "roots", multiple=True, metavar="OLD=NEW", help="Where moved data lies now."
    ),
    click.option("--quiet", is_flag=True, help="No progress on stderr."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)


def index_options(command: F) -> F:
    """``processor``, ``encode``, ``transform``, ``roots``, ``quiet`` and ``as_json``, in this
    order in the help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_two_encoders(processor: str | None, encode: str | None) -> None:
    """
    Raises:
        OptionError: both are given.
    """
    if processor is not None and encode is not None:
        raise OptionError("--processor and --encode both name the encoder: give one of them")
