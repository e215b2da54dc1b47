"""`packidx diff`: compare two plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from packidx.words import number_of

from ..options import json_option
from ..show import console

Row = Mapping[str, Any]


@click.command()
@click.argument("a")
@click.argument("b")
@json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """Compare plan B with plan A, each an INDEX or INDEX@ID.

    \b
    packidx diff index/@84b471c9198f index/

    Samples are matched by id if both plans are of the same lengths, else by source and key.
    """
    from packidx.index import open_index
    from packidx.inspect.diff import diff as compare

    one, two = open_index(a), open_index(b)
    with console.show_status() as doing:
        doing("comparing plans")
        found = compare(one, two)
    console.print_json(found) if as_json else _print_diff(found)


def _print_diff(found: Row) -> None:
    names = {n.upper(): f"{found[n]['path']}@{found[n]['snapshot_id'][:12]}" for n in "ab"}
    if found["same"]:
        console.print_line(f"the same plan: {' and '.join(names.values())}")
        return
    console.print_facts("Plans", names)
    tables = {what: found[what] for what in ("options", "lengths", "counts", "dropped")}
    for column in ("samples", "tokens"):
        of_sources = {name or "–": each[column] for name, each in found["sources"].items()}
        tables[f"{column} of source"] = of_sources
    for title, pairs in tables.items():
        console.print_rows(
            {title: n, "A": _format_value(v["a"]), "B": _format_value(v["b"])}
            for n, v in pairs.items()
        )
    if (samples := found["samples"]) is None:
        console.print_line("samples are not compared: the lengths differ, and keys are not unique")
        return
    facts = {
        "in both": f"{number_of(samples['in_both'], 'sample')}, matched by {samples['matched_by']}",
        "gained, by state in A": console.with_parts(samples["gained"], samples["gained_from"]),
        "lost, by state in B": console.with_parts(samples["lost"], samples["lost_to"]),
        "tokens differ": number_of(samples["tokens_differ"], "sample"),
    }
    console.print_facts("Samples", facts)


def _format_value(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if value is None or type(value) in (int, str) else json.dumps(value)
