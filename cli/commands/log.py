"""`packidx log`: the snapshots of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from packidx.errors import FormatError
from packidx.words import format_percent

from ..options import json_option
from ..show import console

if TYPE_CHECKING:
    from packidx.format.index import IndexManifest


@click.command()
@click.argument("index")
@json_option
def log(index: str, as_json: bool) -> None:
    """List the snapshots of INDEX, newest first."""
    from packidx.index import Index, open_index, read_head, snapshot_ids

    newest = open_index(index)
    head = read_head(newest.path)
    snapshots = []
    for ident in snapshot_ids(newest.path):
        try:
            snapshots.append(Index(newest.path, ident).snapshot)
        except FormatError as error:
            console.print_line(f"warning: left out: {error}", err=True)
    snapshots.sort(key=lambda each: (each.created, each.snapshot_id == head), reverse=True)
    if as_json:
        stated = [snapshot.to_json() for snapshot in snapshots]
        rows = [{key: each.get(key) for key in _KEYS} for each in stated]
        console.print_json([row | {"head": row["snapshot_id"] == head} for row in rows])
    else:
        console.print_rows(_to_row(snapshot, head) for snapshot in snapshots)


_KEYS = ("snapshot_id", "parent", "created", "lengths", "options", "result")


def _to_row(snapshot: IndexManifest, head: str | None) -> dict[str, Any]:
    from packidx.inspect.facts import describe_origin

    result, options = snapshot.result, snapshot.options
    return {
        "snapshot": snapshot.snapshot_id[:12],
        "": "HEAD" if snapshot.snapshot_id == head else "",
        "created (UTC)": snapshot.created.replace("T", " ").rstrip("Z"),
        "capacity": options.capacity,
        "seed": str(options.seed),
        "packs": result.num_packs,
        "fill": format_percent(result.fill),
        "gap": result.gap,
        "dropped": result.num_dropped,
        "options": describe_origin(options),
    }
