"""`packidx stats`: how good a plan is, from its manifest, its packs and their samples."""

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
    from packidx.index.stats import pack_stats, sample_stats

    from .console import print_facts, print_json, print_table, status

    opened = open_index(index)
    manifest = opened.manifest
    with status(quiet) as doing:
        packs = pack_stats(opened)
        found = sample_stats(opened, doing)
    if as_json:
        keys = ("snapshot_id", "parent", "created", "lengths", "options", "result", "sources")
        print_json({key: manifest.get(key) for key in keys} | {"packs": packs} | found)
        return
    facts = result_facts(manifest) | _composition_facts(found)
    print_facts(f"{opened.path}@{opened.id[:12]}", facts)
    rows = [[name, *(_number(cell[key]) for key in _QUANTILES)] for name, cell in packs.items()]
    print_table(["per pack", *_QUANTILES], rows, right=1)
    _print_schedule(manifest["result"], found["schedule"])
    if manifest["sources"]:
        _print_sources(manifest["sources"])


_QUANTILES = ("min", "p50", "p95", "max", "mean")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"


def _composition_facts(found: dict[str, Any]) -> dict[str, str]:
    """How mixed the packs are, and how their samples lie, in words."""
    composition, locality = found["composition"], found["locality"]
    facts = {}
    correlation = composition["length_correlation"]
    if correlation is not None:
        facts["mixing"] = f"{correlation:.2f} correlation of lengths within packs (0 is random)"
    distance = composition["source_distance"]
    if distance is not None and distance["mean"] is not None:
        random = distance["random"]
        beside = "" if random is None else f" ({random:.2f} if drawn at random)"
        facts["source mix"] = f"{distance['mean']:.2f} from the whole's, per pack{beside}"
    if locality is not None:
        shards, read = locality["shards_per_pack"], locality["read_amplification"]
        facts["shards"] = f"{shards['mean']:.1f} per pack, at most {shards['max']}"
        if read["pack"] is not None:
            facts["shards"] += (
                f"; fetching them whole reads {read['pack']:,.1f} times the samples' bytes per "
                f"pack, {read['block']:,.1f} times per step"
            )
    return facts


_ORDERS = {"planned": "plan", "random": "random", "by_vision_tokens": "by vision tokens"}


def _print_schedule(result: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """A line per number of ranks and order; nothing where there is no whole step."""
    from .console import print_table

    rows = []
    for one in ranks:
        for name, words in _ORDERS.items():
            if (order := one[name]) is None:
                continue
            if name == "planned":
                words = f"{words}: {result['schedule']}"
            rows.append(
                [
                    f"{one['ranks']} x {one['micro_steps']}",
                    words,
                    count(one["steps"]),
                    _percent(order["useful"]),
                    _percent(order["useful_by_phase"]),
                    _ratio(order["autocorrelation"], ""),
                    _ratio(order["vision_spread_vs_random"], " x"),
                    _ratio(order["source_spread_vs_random"], " x"),
                ]
            )
    if rows:
        header = ["ranks x micro-steps", "order", "steps", "useful time", "by phase"]
        header += ["autocorrelation", "visual spread", "source spread"]
        print_table(header, rows, right=2)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def _ratio(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


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
    epochs = options["epochs"]
    variants = f", {epochs} epochs of {count(result['num_packs'] // epochs)}" if epochs > 1 else ""
    facts = {
        "samples": f"{count(num_in)} in, {count(result['num_samples'])} packed",
        "tokens": count(result["num_tokens"]),
        "packs": f"{count(result['num_packs'])} of {count(options['capacity'])} tokens{variants}",
        "fill": f"{100 * result['fill']:.3f} %",
        "lower bound": f"{count(result['lower_bound'])} packs ({_proofs(result['bound'])})",
        "gap": f"{count(result['gap'])} packs ({result['gap_percent']:.3f} %)",
        "strategy": _strategies(options["strategy"], result["strategies"]),
        "schedule": f"{result['schedule']}, steps of {result['schedule_block']} packs"
        if result["schedule"] != "random"
        else "random",
        "dropped": f"{count(result['num_dropped'])}" + (f" ({reasons})" if reasons else ""),
    }
    if len(result["windows"]) > 1:
        facts["windows"] = count(len(result["windows"]))
    if result["num_pieces"] != result["num_samples"] * epochs:
        pieces = "of long samples, or copies" if options["weights"] else "of long samples"
        facts["pieces"] = f"{count(result['num_pieces'])}: {pieces}"
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


def _strategies(asked: str, taken: dict[str, int]) -> str:
    """What was asked for, and what it came to."""
    if len(taken) == 1:
        name = next(iter(taken))
        return asked if name == asked else f"{asked}: {name}"
    return f"{asked}: " + ", ".join(f"{name} in {n:,} windows" for name, n in taken.items())


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
