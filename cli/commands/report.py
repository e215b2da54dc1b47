"""`packidx report`: one page with pictures."""

from __future__ import annotations

import click

from ..options import option
from ..show import console


@click.command()
@click.argument("path", metavar="INDEX")
@option("-o --output FILE", "The page, one HTML file.", default="report.html", show_default=True)
def report(path: str, output: str) -> None:
    """Draw INDEX or INDEX@ID on one page, a file that needs nothing else.

    It shows where tokens go, how full packs are, how long samples are, how balanced steps are, and
    a few packs.
    """
    from packidx.inspect.report import write_report

    with console.show_status() as doing:
        write_report(path, output, progress=doing)
    console.print_line(f"written: {output}")
