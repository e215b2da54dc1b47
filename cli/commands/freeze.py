"""`packidx freeze`: a stream's log in, a snapshot out."""

from __future__ import annotations

from typing import Any

import click

from ..options import json_option, option, output_option
from ..show import console
from .plan import print_plan


@click.command()
@click.argument("log")
@output_option("Folder of the index.")
@option("--lengths DIR", "Lengths table of the records, where the stream counted them itself.")
@json_option
def freeze(log: str, output: str, lengths: str | None, as_json: bool) -> None:
    """Make a snapshot of the packs that a stream gave out, which LOG has written down.

    The stream is planned and every pack compared with the log; exit 3 if one is another. Packs keep
    their places in the order of training for numbers.
    """
    from packidx.plan.freeze import freeze_log

    with console.show_status() as progress:
        summary = freeze_log(log, output, lengths=lengths, progress=progress)
    if as_json:
        facts: dict[str, Any] = {"snapshot_id": summary.snapshot_id, "path": summary.path}
        console.print_json(facts | {"result": summary.manifest["result"]})
    else:
        print_plan(summary)
