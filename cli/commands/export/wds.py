"""`packidx export wds`: packs as the samples of new WebDataset tars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...options.together import json_option, output_option, quiet_option, root_option
from ...options.workers import worker_options

if TYPE_CHECKING:
    from packidx.export.wds.api import WdsSummary


@click.command()
@click.argument("index", metavar="INDEX[@ID]")
@output_option("Folder of the tars; one that export wds has written is replaced as a whole.")
@click.option("--max-count", default=10_000, show_default=True, metavar="N", help="Packs per tar.")
@click.option(
    "--max-size",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    help="Bytes per tar, as 500MB or 2GiB; a pack that is larger has its own.",
)
@root_option
@worker_options("read")
@quiet_option
@json_option("Print the result as one JSON object.")
def wds(
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the packs of INDEX or INDEX@ID as tars, media copied as they are.

    One WebDataset sample per pack: LoongForge's packed JSON, and the media of its samples. The
    folder is ready for Megatron-Energon (.nv-meta) and for webdataset. Stopped or killed, the same
    command goes on behind the last finished tar; the output appears when it is whole.
    """
    from packidx.export.wds.api import export_wds

    from ...show.console import print_result, status

    words = {"packs": "written", "files": "uploaded"}
    with status(quiet) as doing:
        summary = export_wds(
            progress=lambda what, done, total: doing(f"{done:,} of {total:,} {what} {words[what]}"),
            **options,
        )
    print_result(summary, _print, as_json)


def _print(summary: WdsSummary) -> None:
    from ...show.console import count, number_of, print_facts

    size = f"{count(summary.num_bytes)} bytes"
    facts = {
        "packs": f"{count(summary.num_packs)} of snapshot {summary.snapshot_id[:12]}",
        "samples": f"{count(summary.num_samples)} ({number_of(summary.num_tokens, 'token')})",
        "media": count(summary.num_media),
        "shards": f"{count(summary.num_shards)} ({size})",
        "export": f"{summary.path} (written in {summary.seconds:.1f} s)",
    }
    if summary.num_shards_taken_over:
        facts["shards"] += f", {count(summary.num_shards_taken_over)} from an earlier run"
    if summary.num_kept:
        facts["samples"] += f"; {count(summary.num_kept)} also as messages under _meta.records"
    print_facts("Exported", facts)
