"""Options that hold unless others are said: those of an earlier plan, or of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.format.plan import Options
from packidx.plan.options.plan_options import OPTIONS

# Options of which a plan takes one.
_RIVALS = (
    {"margin", "packing_ratio", "overflow_chance"},
    {"window_shards", "window_samples"},
)


def inherited(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that make the plan of a manifest's `options` once more."""
    names = (name for name, said in OPTIONS.items() if said.is_stored and said.is_inherited)
    values = {name: getattr(options, name) for name in names}
    values["mix"] = tuple(f"{name}={weight}" for name, weight in options.weights.items())
    weights = options.cost_model.to_json()
    values["cost"] = ",".join(f"{name}={value}" for name, value in weights.items())
    return values


def changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`options` under `changes`, which win, also over other ways to say the same."""
    said = {name for name, value in changes.items() if value is not None}
    ousted = {name for rivals in _RIVALS if rivals & said for name in rivals}
    return {name: value for name, value in options.items() if name not in ousted} | dict(changes)


def merged(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Weights of two mixes, ``'source=weight'``; the second one's hold where both have one."""
    named = {weight.rpartition("=")[0]: weight for weight in (*before, *after)}
    return tuple(named.values())
