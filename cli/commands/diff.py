"""`packidx diff`: compare two plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from packidx.words import count, number_of

from ..options import json_option
from ..show.console import cut_left, print_facts, print_json, print_rows, say, status, visible

Row = Mapping[str, Any]
_WIDTH = 36  # characters of a value or name


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
    with status() as doing:
        doing("comparing plans")
        found = compare(one, two)
    print_json(found) if as_json else _print(found)


def _print(found: Row) -> None:
    names = {n.upper(): f"{found[n]['path']}@{found[n]['snapshot_id'][:12]}" for n in "ab"}
    if found["same"]:
        say(f"the same plan: {' and '.join(names.values())}")
        return
    print_facts("Plans", names)
    for what in ("options", "lengths"):
        print_rows(_row(what, name, both) for name, both in found[what].items())
    print_rows(
        _row("plan", words, both)
        for words, both in (
            *((name.removeprefix("num_"), both) for name, both in found["counts"].items()),
            *((f"dropped: {why}", both) for why, both in found["dropped"].items()),
        )
    )
    for column in ("samples", "tokens"):
        sources = found["sources"].items()
        print_rows(_row(f"{column} of source", name or "–", each[column]) for name, each in sources)
    if found["samples"] is None:
        say("samples are not compared: the lengths differ, and keys are missing or not unique")
        return
    samples = found["samples"]
    facts = {
        "in both": f"{number_of(samples['in_both'], 'sample')}, matched by {samples['matched_by']}",
        "gained": _with_reasons(samples["gained"], samples["gained_from"], "A"),
        "lost": _with_reasons(samples["lost"], samples["lost_to"], "B"),
        "tokens differ": number_of(samples["tokens_differ"], "sample"),
    }
    print_facts("Samples", facts)


def _row(title: str, name: str, both: Row) -> Row:
    return {title: cut_left(visible(name), _WIDTH), "A": _value(both["a"]), "B": _value(both["b"])}


def _value(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut_left(visible(text), _WIDTH)


def _with_reasons(number: int, reasons: Mapping[str, int], plan: str) -> str:
    listed = ", ".join(f"{count(n)} {why}" for why, n in reasons.items())
    return count(number) + (f" (in {plan}: {listed})" if listed else "")
