"""A plan's numbers, in short and, for `packidx stats --verbose`, in tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .console import count, percent, print_facts, print_table, say_wrapped
from .facts import result_facts

if TYPE_CHECKING:
    from packidx.format.index import Result, Source
    from packidx.index import Index

_QUANTILES = ("min", "p50", "p95", "max", "mean")
_SHORT: tuple[str, ...] = (
    "samples",
    "tokens",
    "packs",
    "fill",
    "steps",
    "dropped",
    "left out",
    "no labels",
)
_SHORT += ("options", "continues", "appends to", "windows", "lengths")


def print_verdict(sentences: Iterable[str]) -> None:
    """The verdict's sentences, each with a dash before it."""
    for sentence in sentences:
        say_wrapped(sentence, "- ", "  ")


def print_short(index: Index) -> None:
    """The facts of a plan that are asked for most."""
    facts = result_facts(index.snapshot)
    print_facts("Plan", {name: facts[name] for name in _SHORT if name in facts})


def print_details(index: Index, packs: Mapping[str, Any], of_samples: Mapping[str, Any]) -> None:
    """All facts of a plan, and tables of its packs, its schedule and its sources.

    Args:
        packs: `packidx.inspect.stats.pack_stats`.
        of_samples: `packidx.inspect.stats.sample_stats`.
    """
    snapshot = index.snapshot
    print_facts("Plan", result_facts(snapshot))
    rows = [[name, *(_number(cell[key]) for key in _QUANTILES)] for name, cell in packs.items()]
    print_table(["per pack", *_QUANTILES], rows, right=1)
    _print_schedule(snapshot.result, of_samples["schedule"])
    if snapshot.sources:
        _print_sources(snapshot.sources)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


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
        header = ["ranks", "order", "steps", "useful", "by phase"]
        header += ["neighbours", "visual", "sources"]
        print_table(header, rows, right=2)
        for line in _LEGEND:
            say_wrapped(line)


_LEGEND = (
    "ranks: times the micro-steps of a step; useful: share of the time in which no rank waits for "
    "the slowest of its micro-step, by the plan's cost model; by phase: waiting in the vision "
    "tower and again in the language model",
    "neighbours: autocorrelation of the costs of steps; visual, sources: spread of the steps' "
    "shares of visual tokens, and of sources, as multiples of random order's",
)


def _ratio(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


def _print_sources(sources: Iterable[Source]) -> None:
    rows = [
        [source.name, count(source.num_samples), count(source.num_dropped)] for source in sources
    ]
    print_table(["source", "samples", "dropped"], rows, right=1)
