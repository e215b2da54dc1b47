"""Who does a command's work: ``--workers`` and ``--engine``, said once for all commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from .together import Command, together


def worker_options(does: str, default: str = "one per CPU") -> Callable[[Command], Command]:
    """``--workers`` and ``--engine`` of a command.

    Args:
        does: what the workers do, for the help: ``'count'``.
        default: how many there are.
    """
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Processes that {does}, or tasks of Ray at a time.  [default: {default}]",
    )
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Whose processes: this machine's, or Ray's, of the cluster that RAY_ADDRESS names or "
        "else of this machine.",
    )
    return together(workers, engine)
