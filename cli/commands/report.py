"""`packidx report`: one page with pictures."""

from __future__ import annotations

from typing import Any

import click

from ..options import quiet_option, ranks_option, root_option
from ..show.console import say, status


@click.command()
@click.argument("path", metavar="INDEX|LENGTHS")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="The page, one HTML file.",
)
@ranks_option
@root_option
@quiet_option
def report(path: str, output: str, ranks: tuple[int, ...], quiet: bool, **options: Any) -> None:
    """Draw INDEX, INDEX@ID or LENGTHS on one page, a file that needs nothing else.

    It shows where tokens go, how full packs are, how long samples are, how balanced steps are, and
    a few packs.
    """
    from packidx.inspect.report import write_report
    from packidx.inspect.waiting import RANKS

    with status(quiet) as doing:
        write_report(path, output, ranks=ranks or RANKS, progress=doing, **options)
    say(f"written: {output}")
