"""`packidx export`: write a snapshot's packs for other loaders."""

from __future__ import annotations

import click

from ...lazy import LazyGroup

_KINDS = {
    "energon": ("export.energon", "Packs for Megatron-Energon, no media copied."),
    "wds": ("export.wds", "Packs as the samples of new WebDataset tars."),
}


@click.group(cls=LazyGroup, lazy=_KINDS)
def export() -> None:
    """Write a snapshot's packs for loaders that do not read the index."""
