"""`packidx log`: the snapshots of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packidx.errors import FormatError
from packidx.words import count, percent

from ..options import json_option, quiet_option
from ..show.console import print_json, print_table, say

if TYPE_CHECKING:
    from packidx.format.index import IndexManifest


@click.command()
@click.argument("index")
@quiet_option
@json_option
def log(index: str, quiet: bool, as_json: bool) -> None:
    """List the snapshots of INDEX, newest first."""
    from packidx.index import Index, open_index, read_head, snapshot_ids

    newest = open_index(index)
    head = read_head(newest.path)
    snapshots = []
    for ident in snapshot_ids(newest.path):
        try:
            snapshots.append(Index(newest.path, ident).snapshot)
        except FormatError as error:
            say(f"warning: left out: {error}", err=True)
    snapshots.sort(
        key=lambda snapshot: (snapshot.created, snapshot.snapshot_id == head), reverse=True
    )
    if as_json:
        stated = [snapshot.to_json() for snapshot in snapshots]
        print_json(
            [
                {key: row.get(key) for key in _KEYS} | {"head": row["snapshot_id"] == head}
                for row in stated
            ]
        )
    else:
        _show(snapshots, head)


_KEYS = ("snapshot_id", "parent", "created", "lengths", "options", "result")


def _show(snapshots: list[IndexManifest], head: str | None) -> None:
    from packidx.inspect.facts import origin

    rows = []
    for snapshot in snapshots:
        result, options = snapshot.result, snapshot.options
        rows.append(
            {
                "snapshot": snapshot.snapshot_id[:12],
                "": "HEAD" if snapshot.snapshot_id == head else "",
                "created (UTC)": snapshot.created.replace("T", " ").rstrip("Z"),
                "capacity": count(options.capacity),
                "seed": str(options.seed),
                "packs": count(result.num_packs),
                "fill": percent(result.fill),
                "gap": count(result.gap),
                "dropped": count(result.num_dropped),
                "options": origin(options),
            }
        )
    print_table(rows[0], [row.values() for row in rows], right=3)
