"""`packidx log`: the snapshots of an index."""

from __future__ import annotations

from typing import Any

import click

from ..show.console import say


@click.command()
@click.argument("index")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def log(index: str, quiet: bool, as_json: bool) -> None:
    """List the snapshots of INDEX, newest first."""
    from packidx.errors import FormatError
    from packidx.index import Index, open_index, read_head, snapshot_ids

    newest = open_index(index)
    head = read_head(newest.path)
    rows = []
    for ident in snapshot_ids(newest.path):
        try:
            manifest = Index(newest.path, ident).manifest
        except FormatError as error:
            say(f"warning: left out: {error}", err=True)
            continue
        rows.append({key: manifest.get(key) for key in _KEYS} | {"head": ident == head})
    rows.sort(key=lambda row: (row["created"] or "", row["head"]), reverse=True)
    if as_json:
        from ..show.console import print_json

        print_json(rows)
    else:
        _show(rows)


_KEYS = ("snapshot_id", "parent", "created", "lengths", "options", "result")


def _show(rows: list[dict[str, Any]]) -> None:
    from ..show.console import count, print_table
    from ..show.facts import origin

    header = [
        "snapshot",
        "",
        "created (UTC)",
        "capacity",
        "seed",
        "packs",
        "fill",
        "gap",
        "dropped",
        "options",
    ]
    cells = []
    for row in rows:
        result, options = row["result"], row["options"]
        cells.append(
            [
                row["snapshot_id"][:12],
                "HEAD" if row["head"] else "",
                (row["created"] or "").replace("T", " ").rstrip("Z"),
                count(options["capacity"]),
                str(options["seed"]),
                count(result["num_packs"]),
                f"{100 * result['fill']:.2f} %",
                count(result["gap"]),
                count(result["num_dropped"]),
                origin(options),
            ]
        )
    print_table(header, cells, right=3)
