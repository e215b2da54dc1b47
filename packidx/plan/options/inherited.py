"""Options that an earlier plan leaves to what is appended to it or continues it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.plan.options.plan_options import OPTIONS


def inherited(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `PlanOptions` that make the plan of a manifest's `options` once more."""
    names = (name for name, said in OPTIONS.items() if said.is_stored and said.is_inherited)
    values = {name: options[name] for name in names}
    values["mix"] = tuple(f"{name}={weight}" for name, weight in options["weights"].items())
    values["cost"] = ",".join(f"{name}={value}" for name, value in options["cost_model"].items())
    return values


def merged(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Weights of two mixes, ``'source=weight'``; the second one's hold where both have one."""
    named = {one.rpartition("=")[0]: one for one in (*before, *after)}
    return tuple(named.values())
