"""`packidx stats`: how good a plan is, or what a lengths table holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packidx.inspect.facts import result_facts
from packidx.words import count, percent

from ..options import json_option
from ..show.console import (
    print_facts,
    print_json,
    print_rows,
    say,
    say_wrapped,
    status,
    warn,
    with_parts,
)

if TYPE_CHECKING:
    from packidx.index import Index


@click.command()
@click.argument("index", metavar="INDEX|LENGTHS")
@click.option(
    "--verbose",
    is_flag=True,
    help="Of a plan, print all facts, and tables of its packs, schedule and sources.",
)
@json_option
def stats(index: str, verbose: bool, as_json: bool) -> None:
    """Say how good the plan of INDEX or INDEX@ID is, or what the table LENGTHS holds.

    \b
    packidx stats data/index
    packidx stats data/lengths
    """
    from packidx.errors import NotFoundInIndex, SourceError
    from packidx.index import open_index
    from packidx.inspect.stats import lengths_stats

    try:
        opened = open_index(index)
    except NotFoundInIndex as absent:
        try:
            found = lengths_stats(index)
        except SourceError:
            raise absent from None
        print_json(found) if as_json else print_lengths_stats(found)
        return
    _print_index(opened, verbose, as_json)


def _print_index(opened: Index, verbose: bool, as_json: bool) -> None:
    from packidx.index.described import untrained
    from packidx.inspect.stats import plan_stats
    from packidx.inspect.verdict import verdict

    with status() as doing:
        doing("looking at the packs")
        told = plan_stats(opened)
        sentences = verdict(opened, told)
    warnings = untrained(opened.snapshot)
    if as_json:
        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        manifest = opened.manifest
        words = {"warnings": warnings, "verdict": sentences}
        print_json({key: manifest.get(key) for key in keys} | told | words)
        return
    say(f"{opened.path}@{opened.id[:12]}")
    for sentence in sentences:
        say_wrapped(sentence, "- ")
    facts = result_facts(opened.snapshot)
    print_facts("Plan", {name: facts[name] for name in facts if verbose or name in _SHORT})
    if verbose:
        _print_details(opened, told)
    warn(warnings)


_QUANTILES = ("min", "p50", "p95", "p99", "max")


def print_lengths_stats(stats: Mapping[str, Any]) -> None:
    """`packidx.inspect.stats.lengths_stats` in a few tables."""
    facts = {"samples": with_parts(stats["num_ok"], stats["methods"])}
    facts["rejected"] = with_parts(stats["num_rejected"], stats["rejected"])
    facts["tokens"] = count(stats["num_tokens"])
    if stats["label_tokens"] is not None:
        facts["tokens"] += f", of which {count(stats['label_tokens'])} are known to be trained on"
    print_facts(stats["path"], facts)
    _print_sources(stats["sources"])
    _print_held(stats["sources"])
    print_rows(
        {
            "longest samples": row["key"]
            or (None if row["sample_id"] is None else f"sample {row['sample_id']}"),
            "source": row["source"],
            "length": row["length"],
        }
        for row in stats["longest"]
    )


def _print_sources(sources: list[dict[str, Any]]) -> None:
    rows = []
    for source in sources:
        length = source["length"] or dict.fromkeys(_QUANTILES)
        row = {"source": source["name"], "samples": source["num_ok"]}
        row |= {"rejected": source["num_rejected"], "tokens": source["num_tokens"]}
        row |= {"min length": length["min"]}
        rows.append(row | {name: length[name] for name in _QUANTILES[1:]})
    print_rows(rows)


def _print_held(sources: list[dict[str, Any]]) -> None:
    """Labels and media, where anything is known of them."""
    rows = []
    for source in sources:
        labels, tokens = source["label_tokens"], source["num_tokens"]
        held = [f"{count(number)} {_HELD[kind]}" for kind, number in source["modality"].items()]
        rows.append(
            {
                "source": source["name"],
                "counted": ", ".join(source["methods"]) or None,
                "samples by what they hold": ", ".join(held) or None,
                "trained on": percent(labels / tokens, 1) if labels and tokens else labels,
                "images": source["num_images"],
                "videos": source["num_videos"],
            }
        )
    print_rows(rows)


_HELD = {"text": "text alone", "mixed": "mixed media", "unknown": "of unknown kind"}
_HELD |= {kind: f"with {kind}" for kind in ("images", "videos", "audio")}


_PER_PACK = ("min", "p50", "p95", "max", "mean")
_SHORT = (
    *("samples", "tokens", "packs", "fill", "steps", "lost", "left out", "no labels"),
    *("mix", "options", "continues", "windows", "lengths"),
)


def _print_details(index: Index, told: Mapping[str, Any]) -> None:
    """Tables of a plan's packs, its schedule and its sources.

    Args:
        told: `packidx.inspect.stats.plan_stats`.
    """
    print_rows(
        {"per pack": name} | {key: _number(cell[key]) for key in _PER_PACK}
        for name, cell in told["packs"].items()
    )
    _print_schedule(told["schedule"])
    print_rows(
        {"source": each.name, "samples": each.num_samples, "dropped": each.num_dropped}
        for each in index.snapshot.sources
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


def _print_schedule(schedule: list[dict[str, Any]]) -> None:
    """The useful share of the time by number of ranks; nothing where there is no whole step."""
    orders = {"this plan": "planned", "random order": "random"}
    orders["by vision tokens"] = "by_vision_tokens"
    rows = []
    for row in schedule:
        told = {words: row[name] for words, name in orders.items()}
        if any(told.values()):
            ranks = {"useful time, ranks": f"{row['ranks']} x {row['micro_steps']}"}
            shares = {
                words: percent(each and each["useful_by_phase"]) for words, each in told.items()
            }
            rows.append(ranks | {"steps": row["steps"]} | shares)
    print_rows(rows)
    if rows:
        say_wrapped(
            "ranks: times the micro-steps of a step; useful: share of the time in which no rank "
            "waits for the slowest of its micro-step, in the vision tower or in the language "
            "model, by the plan's cost model"
        )
