"""`packidx stats`: how good a plan is, from its manifest and its packs."""

from __future__ import annotations

from typing import Any

import click

from .console import count


@click.command()
@click.argument("index")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(index: str, quiet: bool, as_json: bool) -> None:
    """Show how good the plan of INDEX or INDEX@ID is."""
    from packidx.index import open_index
    from packidx.index.stats import pack_stats

    opened = open_index(index)
    manifest = opened.manifest
    packs = pack_stats(opened)
    if as_json:
        from .console import print_json

        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        print_json({key: manifest.get(key) for key in keys} | {"packs": packs})
        return
    from .console import print_facts, print_table

    print_facts(f"{opened.path}@{opened.id[:12]}", result_facts(manifest))
    rows = [[name, *(_number(cell[key]) for key in _QUANTILES)] for name, cell in packs.items()]
    print_table(["per pack", *_QUANTILES], rows, right=1)
    if manifest["sources"]:
        _print_sources(manifest["sources"])


_QUANTILES = ("min", "p50", "p95", "max", "mean")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


def _print_sources(sources: list[dict[str, Any]]) -> None:
    from .console import print_table

    rows = [
        [one["name"], count(one.get("num_samples")), count(one.get("num_dropped"))]
        for one in sources
    ]
    print_table(["source", "samples", "dropped"], rows, right=1)


def result_facts(manifest: dict[str, Any]) -> dict[str, str]:
    """A manifest's result and options in words; the same for `plan` and `stats`."""
    result, options = manifest["result"], manifest["options"]
    reasons = ", ".join(f"{n:,} {why}" for why, n in result["dropped"].items())
    num_in = manifest["lengths"]["num_samples"]
    facts = {
        "samples": f"{count(num_in)} in, {count(result['num_samples'])} packed",
        "tokens": count(result["num_tokens"]),
        "packs": f"{count(result['num_packs'])} of {count(options['capacity'])} tokens",
        "fill": f"{100 * result['fill']:.3f} %",
        "lower bound": f"{count(result['lower_bound'])} packs ({_proofs(result['bound'])})",
        "gap": f"{count(result['gap'])} packs ({result['gap_percent']:.3f} %)",
        "dropped": f"{count(result['num_dropped'])}" + (f" ({reasons})" if reasons else ""),
    }
    if result["num_pieces"] != result["num_samples"]:
        facts["pieces"] = f"{count(result['num_pieces'])}: long samples were split"
    if result["num_tokens_cut"]:
        facts["cut off"] = f"{count(result['num_tokens_cut'])} tokens of long samples"
    methods = manifest["lengths"]["methods"]
    if options["planned_capacity"] != options["capacity"]:
        planned = count(options["planned_capacity"])
        inexact = ", ".join(f"{n:,} {name}" for name, n in methods.items() if name != "exact")
        facts["margin"] = f"{100 * options['margin']:g} %: {planned} tokens are planned"
        facts["margin"] += f" ({inexact} lengths)" if inexact else ""
    encoder = manifest["lengths"].get("encoder")
    how = ", ".join(f"{n:,} {name}" for name, n in methods.items())
    by = f", by {encoder['name']}" if encoder else ""
    facts["lengths"] = f"{how}{by}" if how else "taken as given"
    return facts


_BOUNDS = {
    "volume": "⌈Σ/C⌉",
    "L2": "Martello–Toth L2",
    "DFF": "dual-feasible functions",
    "LP": "linear program",
    "copies": "copies of one sample",
}


def _proofs(bound: str) -> str:
    """The names of the bounds that won, in words."""
    return ", ".join(_BOUNDS.get(name, name) for name in bound.split(", "))
