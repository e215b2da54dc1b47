"""Options of the commands that read an index with the encoder it was counted with."""

from __future__ import annotations

import click

from packidx.errors import OptionError

from .together import json_option, quiet_option, root_option, together

index_options = together(
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
    root_option,
    quiet_option,
    json_option(),
)
"""``processor``, ``encode``, ``transform``, ``roots``, ``quiet`` and ``as_json``."""


def refuse_two_encoders(processor: str | None, encode: str | None) -> None:
    """
    Raises:
        OptionError: both are given.
    """
    if processor is not None and encode is not None:
        raise OptionError("--processor and --encode both name the encoder: give one of them")
