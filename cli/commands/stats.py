"""`packidx stats`: how good a plan is, or what a lengths table holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packidx.inspect.facts import result_facts
from packidx.words import format_count, format_percent

from ..options import json_option, option
from ..show import console

if TYPE_CHECKING:
    from packidx.index import Index


@click.command()
@click.argument("index", metavar="INDEX|LENGTHS")
@option("--verbose", "Of a plan, print all facts, and tables of its packs, schedule and sources.")
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
        console.print_json(found) if as_json else print_lengths_stats(found)
        return
    _print_index(opened, verbose, as_json)


def _print_index(opened: Index, verbose: bool, as_json: bool) -> None:
    from packidx.index.described import describe_untrained
    from packidx.inspect.stats import plan_stats
    from packidx.inspect.verdict import plan_verdict

    with console.show_status() as doing:
        doing("looking at the packs")
        facts = plan_stats(opened)
        sentences = plan_verdict(opened, facts)
    warnings = describe_untrained(opened.snapshot)
    if as_json:
        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        manifest = opened.manifest
        words = {"warnings": warnings, "verdict": sentences}
        console.print_json({key: manifest.get(key) for key in keys} | facts | words)
        return
    console.print_line(f"{opened.path}@{opened.id[:12]}")
    for sentence in sentences:
        console.say_wrapped(sentence, "- ")
    said = result_facts(opened.snapshot)
    if (memory := facts["memory"]) is not None:
        held, most = (f"{memory[name] / 2**30:,.2f} GiB" for name in ("bytes", "limit"))
        said["memory"] = f"heaviest: pack {memory['pack_id']} with {held} of {most}, estimated"
    console.print_facts("Plan", {name: said[name] for name in said if verbose or name in _SHORT})
    if verbose:
        _print_details(opened, facts)
    console.print_warnings(warnings)


_SHORT = (
    *("samples", "tokens", "packs", "fill", "steps", "lost", "left out"),
    *("memory", "mix", "options", "continues", "windows", "lengths"),
)
_QUANTILES = ("min", "p50", "p95", "p99", "max")
_HELD = {"text": "text alone", "mixed": "mixed media", "unknown": "of unknown kind"}
_HELD |= {kind: f"with {kind}" for kind in ("images", "videos", "audio")}


def print_lengths_stats(stats: Mapping[str, Any]) -> None:
    """`packidx.inspect.stats.lengths_stats` in a few tables."""
    facts = {"samples": console.with_parts(stats["num_ok"], stats["methods"])}
    facts["rejected"] = console.with_parts(stats["num_rejected"], stats["rejected"])
    facts["tokens"] = format_count(stats["num_tokens"])
    if stats["label_tokens"] is not None:
        facts["tokens"] += f", of which {format_count(stats['label_tokens'])} are trained on"
    console.print_facts(stats["path"], facts)
    rows, held = [], []
    for source in stats["sources"]:
        length, name = source["length"] or dict.fromkeys(_QUANTILES), {"source": source["name"]}
        row = {"samples": source["num_ok"], "rejected": source["num_rejected"]}
        row |= {"tokens": source["num_tokens"], "min length": length["min"]}
        rows.append(name | row | {quantile: length[quantile] for quantile in _QUANTILES[1:]})
        labels, tokens = source["label_tokens"], source["num_tokens"]
        kinds = [f"{format_count(num)} {_HELD[kind]}" for kind, num in source["modality"].items()]
        row = {"counted": ", ".join(source["methods"]) or None}
        row |= {"samples by what they hold": ", ".join(kinds) or None}
        row |= {"trained on": format_percent(labels / tokens, 1) if labels and tokens else labels}
        held.append(name | row | {"images": source["num_images"], "videos": source["num_videos"]})
    console.print_rows(rows)
    console.print_rows(held)
    longest = []
    for row in stats["longest"]:
        ident = None if row["sample_id"] is None else f"sample {row['sample_id']}"
        own = {"source": row["source"], "length": row["length"]}
        longest.append({"longest samples": row["key"] or ident} | own)
    console.print_rows(longest)


def _print_details(index: Index, facts: Mapping[str, Any]) -> None:
    """Tables of a plan's schedule and its sources; `facts` are `plan_stats`."""
    orders = {"this plan": "planned", "random order": "random"}
    rows = []
    for row in facts["schedule"]:
        if row["planned"]:  # there is a whole step
            ranks = {"useful time, ranks": f"{row['ranks']} x {row['micro_steps']}"}
            useful = {words: row[name] for words, name in orders.items()}
            shares = {key: format_percent(n and n["useful_by_phase"]) for key, n in useful.items()}
            rows.append(ranks | {"steps": row["steps"]} | shares)
    console.print_rows(rows)
    if rows:
        console.say_wrapped(
            "ranks: times the micro-steps of a step; useful: share of the time in which no rank "
            "waits for the slowest of its micro-step, in the vision tower or in the language "
            "model, by the plan's cost model"
        )
    console.print_rows(
        {"source": each.name, "samples": each.num_samples, "dropped": each.num_dropped}
        for each in index.snapshot.sources
    )
