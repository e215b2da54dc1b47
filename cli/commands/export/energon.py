"""`packidx export energon`: a snapshot's packs for Megatron-Energon, beside the original tars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...options.together import (
    json_option,
    output_option,
    quiet_option,
    root_option,
    roots_option,
)
from ...options.workers import worker_options
from ...show.console import say

if TYPE_CHECKING:
    from packidx.export.energon.api import EnergonSummary


@click.command()
@click.argument("index")
@output_option("Folder of the export; one that is there already is replaced as a whole.")
@click.option(
    "--relative",
    is_flag=True,
    help="Name the tars' folders relative to DIR, for data that moves along with it.  "
    "[default: absolute]",
)
@root_option
@roots_option(
    "--energon-root",
    "energon_roots",
    "What the tars' folders are called where Energon runs, such as s3://bucket=msc://PROFILE.",
)
@worker_options("read the tars")
@quiet_option
@json_option("Print the result as one JSON object.")
def energon(
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the packs of INDEX or INDEX@ID for Megatron-Energon; no media are copied.

    DIR gets packs.jsonl, its index, and a metadataset.yaml that leads Energon to the original
    WebDataset, which `energon prepare` must have prepared. examples/energon_packs.py reads it.
    """
    from packidx.export.energon.api import export_energon

    from ...show.console import print_result, status

    with status(quiet) as doing:
        summary = export_energon(
            progress=lambda what, done, total: doing(f"{done:,} of {total:,} {what} written"),
            **options,
        )
    print_result(summary, _print, as_json)
    for text in summary.warnings:
        say(f"warning: {text}", err=True)


def _print(summary: EnergonSummary) -> None:
    from ...show.console import count, number_of, print_facts

    share = 100 * summary.nbytes / max(summary.source_bytes, 1)
    facts = {
        "packs": count(summary.num_packs),
        "samples": f"{count(summary.num_samples)}, which name {count(summary.num_media)} media",
        "bytes": f"{count(summary.nbytes)}, {share:.2g} % of the tars'",
        **{f"aux {name}": folder for name, folder in summary.sources.items()},
        "snapshot": summary.snapshot_id,
        "export": f"{summary.path} (written in {summary.seconds:.1f} s)",
    }
    if summary.resumed_parts:
        facts["resumed"] = f"{number_of(summary.resumed_parts, 'part')} done before"
    print_facts("Exported for Megatron-Energon", facts)
