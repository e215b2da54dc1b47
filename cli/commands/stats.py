"""`packidx stats`: how good a plan is, from its manifest, its packs and their samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ..options import json_option, quiet_option
from ..show.console import (
    count,
    number_of,
    percent,
    print_facts,
    print_json,
    print_table,
    say,
    status,
    warn,
)

if TYPE_CHECKING:
    from packidx.format.index import Source
    from packidx.format.plan import Result
    from packidx.index import Index


@click.command()
@click.argument("index")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Data-parallel ranks that the schedule is looked at for.  [default: 8, 64, 512]",
)
@quiet_option
@json_option()
def stats(index: str, ranks: tuple[int, ...], quiet: bool, as_json: bool) -> None:
    """Show how good the plan of INDEX or INDEX@ID is."""
    from packidx.index import open_index
    from packidx.index.untrained import untrained
    from packidx.inspect.stats import RANKS, pack_stats, sample_stats

    from ..show.facts import result_facts

    opened = open_index(index)
    snapshot = opened.snapshot
    with status(quiet) as doing:
        packs = pack_stats(opened)
        of_samples = sample_stats(opened, doing, ranks or RANKS)
    if as_json:
        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        told = {"packs": packs, "warnings": untrained(snapshot)}
        print_json({key: opened.manifest.get(key) for key in keys} | told | of_samples)
        return
    facts = result_facts(snapshot) | _composition_facts(of_samples)
    print_facts(f"{opened.path}@{opened.id[:12]}", facts)
    rows = [[name, *(_number(cell[key]) for key in _QUANTILES)] for name, cell in packs.items()]
    print_table(["per pack", *_QUANTILES], rows, right=1)
    _print_schedule(snapshot.result, of_samples["schedule"])
    for note in _powerless(opened, of_samples["schedule"]):
        say(note)
    if snapshot.sources:
        _print_sources(snapshot.sources)
    warn(untrained(snapshot))


_QUANTILES = ("min", "p50", "p95", "max", "mean")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


def _composition_facts(of_samples: dict[str, Any]) -> dict[str, str]:
    """How mixed the packs are, and how their samples lie, in words."""
    composition, locality = of_samples["composition"], of_samples["locality"]
    facts = {}
    correlation = composition["length_correlation"]
    if correlation is not None:
        facts["mixing"] = f"{correlation:.2f} correlation of lengths within packs (0 is random)"
    distance = composition["source_distance"]
    if distance is not None and distance["mean"] is not None:
        random = distance["random"]
        beside = "" if random is None else f" ({100 * random:.0f} % if drawn at random)"
        share = f"packs differ from the whole by {100 * distance['mean']:.0f} % of their tokens"
        facts["source mix"] = f"{share}{beside}"
    if locality is not None:
        shards, read = locality["shards_per_pack"], locality["read_amplification"]
        facts["shards"] = f"{shards['mean']:.1f} per pack, at most {shards['max']}"
        if read["pack"] is not None:
            each, times, beside = "pack", read["pack"], ""
            if read["block"] is not None:
                each, times = "step", read["block"]
                beside = f" ({read['pack']:,.1f} for each pack)"
            facts["shards"] += (
                f"; a reader that fetches whole shards for each {each} reads {times:,.1f} "
                f"times the samples' bytes{beside}"
            )
    return facts


def _powerless(index: Index, ranks: list[dict[str, Any]]) -> list[str]:
    """A line for each number of ranks for which the schedule can do nothing, or does harm."""
    result = index.snapshot.result
    if result.schedule == "random":
        return []
    notes = []
    for of_ranks in ranks:
        planned, random = of_ranks["planned"], of_ranks["random"]
        if planned is None or planned["useful"] is None:
            continue
        # Its micro-steps, planned apart, are all of one micro-step of these ranks.
        joined = of_ranks["micro_steps"] == 1 and result.schedule_chunk < result.schedule_block
        below = planned["useful"] < random["useful"]
        if joined or below:
            share, other = percent(planned["useful"]), percent(random["useful"])
            said = f"{share} useful time, {'below' if below else 'beside'} random order's {other}"
            why = f": one micro-step per step leaves nothing to even out{_more(index, of_ranks)}"
            number = number_of(of_ranks["ranks"], "rank")
            notes.append(f"note: with {number} the schedule gives {said}{why if joined else ''}")
    return notes


def _more(index: Index, of_ranks: dict[str, Any]) -> str:
    """What more micro-steps would bring."""
    from packidx.inspect.stats import MICRO_STEPS, useful_with_micro_steps

    useful = useful_with_micro_steps(index, of_ranks["ranks"])
    if useful is None:
        return ""
    batch = MICRO_STEPS * of_ranks["ranks"]
    return (
        f"; --micro-steps {MICRO_STEPS} with --global-batch {batch} would bring {percent(useful)}"
    )


_ORDERS = {"planned": "plan", "random": "random", "by_vision_tokens": "by vision tokens"}


def _print_schedule(result: Result, ranks: list[dict[str, Any]]) -> None:
    """A line per number of ranks and order; nothing where there is no whole step."""
    rows = []
    for of_ranks in ranks:
        for name, words in _ORDERS.items():
            if (order := of_ranks[name]) is None:
                continue
            if name == "planned":
                words = f"{words}: {result.schedule}"
            rows.append(
                [
                    f"{of_ranks['ranks']} x {of_ranks['micro_steps']}",
                    words,
                    count(of_ranks["steps"]),
                    percent(order["useful"]),
                    percent(order["useful_by_phase"]),
                    _ratio(order["autocorrelation"], ""),
                    _ratio(order["vision_spread_vs_random"], " x"),
                    _ratio(order["source_spread_vs_random"], " x"),
                ]
            )
    if rows:
        header = ["ranks x micro-steps", "order", "steps", "useful time", "by phase"]
        header += ["autocorrelation", "visual spread", "source spread"]
        print_table(header, rows, right=2)
        for line in _LEGEND:
            say(line)


_LEGEND = (
    "useful time: share in which no rank waits for the slowest of its micro-step, by the plan's "
    "cost model; by phase: waiting in the vision tower and again in the language model",
    "autocorrelation: of the costs of neighbouring steps; spreads: of the steps' shares of visual "
    "tokens, and of sources, as multiples of random order's",
)


def _ratio(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


def _print_sources(sources: Iterable[Source]) -> None:
    rows = [
        [source.name, count(source.num_samples), count(source.num_dropped)] for source in sources
    ]
    print_table(["source", "samples", "dropped"], rows, right=1)
