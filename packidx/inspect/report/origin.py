"""Where a plan is from: its certificate, its options, and its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packidx.format.index import Options
from packidx.format.manifest import SourceData
from packidx.index.reader import Index
from packidx.inspect.report.page import Figure, count, short
from packidx.plan.cost_model import DEFAULT_PRESET, parse_cost
from packidx.plan.options import DEFAULTS, command_line
from packidx.plan.resolved import inherited
from packidx.records.ledger import by_use


def asked_for(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that differ from the defaults, and the capacity."""
    values = inherited(options)
    if parse_cost(DEFAULT_PRESET).to_json() == options.cost_model.to_json():
        del values["cost"]
    if options.epochs > 1:
        values["epochs"] = options.epochs
    if not options.margin:
        del values["margin"]
    return {
        name: value
        for name, value in values.items()
        if name == "capacity" or value not in (DEFAULTS[name], None, ())
    }


def columns_figure(sources: Sequence[SourceData]) -> Figure | None:
    """Return what each source's columns are used as; None where nobody looked."""
    rows = [(short(each.name), *by_use(each.columns)) for each in sources if each.columns]
    if not rows:
        return None
    says = (
        "What is carried or not used changes no token. A column that nobody uses and that holds an "
        "image, turns or the like makes records “unused_column”, unless it is ignored."
    )
    header = ("source", "columns used as", "carried", "not used", "ignored")
    return Figure("Columns of the sources", says, header, rows, is_open=True, is_wide=True)


def origin_figures(index: Index) -> list[Figure]:
    """The plan's certificate and provenance, as tables."""
    snapshot = index.snapshot
    result, lengths, options = snapshot.result, snapshot.lengths, snapshot.options
    encoder = lengths.encoder
    compared: Mapping[str, Any] = (encoder.compared if encoder else None) or {}
    told = compared.get("with") and f"with {compared['with']}, {compared.get('records')} samples"
    facts = [
        ("snapshot", snapshot.snapshot_id),
        ("parent", snapshot.parent or "none"),
        ("written", f"{snapshot.created}, format {snapshot.VERSION}"),
        ("packs", f"{count(result.num_packs)}, at least {count(result.lower_bound)} needed"),
        ("bound", f"{result.bound}; gap {count(result.gap)} ({result.gap_percent:.3f} %)"),
        ("strategy", f"{options.strategy}: {', '.join(result.strategies)}"),
        ("lengths", lengths.uri),
        ("their fingerprint", lengths.fingerprint),
        ("counted by", encoder.name if encoder else "not stated"),
        ("compared", told or compared.get("reason") or "not stated"),
        ("margin", f"{100 * (1 - options.planned_capacity / options.capacity):.2f} % kept free"),
        ("software", ", ".join(f"{name} {v}" for name, v in snapshot.software.items())),
    ]
    for number, before in enumerate(options.continues):
        said = f"{before.snapshot_id}, after {count(before.position)} packs"
        facts.append((f"goes on from ({number + 1})", said))
    if options.appends_to:
        facts.append(("appends to", options.appends_to))
    facts.append(("command", command_line(lengths.uri, index.path, asked_for(options))))
    figures = [
        Figure("What it was made of", "", ("", ""), [f for f in facts if f[1]], is_open=True)
    ]
    columns = columns_figure(snapshot.sources)
    figures += [] if columns is None else [columns]
    if snapshot.recipe is not None:
        rows = [(line,) for line in snapshot.recipe.rstrip("\n").split("\n")[:200]]
        figures.append(Figure("Its recipe", "", ("",), rows))
    return figures
