"""`packidx export`: write a snapshot's packs for other loaders."""

from __future__ import annotations

from typing import Any

import click

from ..options import (
    json_option,
    option,
    output_option,
    quiet_option,
    root_option,
    roots_option,
    workers_option,
)
from ..show import console


@click.group()
def export() -> None:
    """Write a snapshot's packs for loaders that do not read the index."""


@export.command(short_help="Packs for Megatron-Energon, no media copied.")
@click.argument("index")
@output_option("Folder of the export, new or empty.")
@root_option
@roots_option(
    "--energon-root energon_roots",
    "How the tars' folders are named where Energon runs, such as s3://bucket=msc://PROFILE.",
)
@workers_option("read the tars")
@quiet_option
@json_option
def energon(quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the packs of INDEX or INDEX@ID for Megatron-Energon; no media are copied.

    DIR gets packs.jsonl, its index, and a metadataset.yaml that leads Energon to the original
    WebDataset, which `energon prepare` must have prepared. examples/energon_packs.py reads it.
    """
    from packidx.export.energon import export_energon

    with console.progress_bar(quiet) as progress:
        summary = export_energon(progress=progress, **options)
    console.print_summary("Exported for Megatron-Energon", summary, as_json)
    console.print_warnings(summary.warnings)


@export.command(short_help="Packs as the samples of new WebDataset tars.")
@click.argument("index", metavar="INDEX[@ID]")
@output_option("Folder of the tars, new or empty.")
@option(
    "--max-size SIZE",
    "Bytes per tar, such as 500MB or 2GiB; a larger pack gets a tar of its own.",
    default="1GB",
    show_default=True,
)
@root_option
@workers_option("read")
@quiet_option
@json_option
def wds(quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the packs of INDEX or INDEX@ID as tars, media copied as they are.

    One WebDataset sample per pack: LoongForge's packed JSON, and the media of its samples. The
    output appears when it is whole; an export that was killed starts again.
    """
    from packidx.export.wds import export_wds

    with console.progress_bar(quiet) as progress:
        summary = export_wds(progress=progress, **options)
    console.print_summary("Exported", summary, as_json)
    console.print_warnings(summary.warnings)
