"""Options that an earlier plan leaves to what is appended to it or continues it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a plan that goes on from another one takes over, unless it is told otherwise.
_INHERITED = (
    "capacity",
    "strategy",
    "seed",
    "on_long",
    "packing_ratio",
    "shift",
    "max_images",
    "max_vision_patches",
    "max_samples",
    "group_by",
    "align",
    "pad_pack_to",
    "reserve",
    "holdout",
    "side",
    "schedule",
    "global_batch",
    "micro_steps",
    "window_shards",
    "window_samples",
)


def inherited(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `PlanOptions` that make the plan of a manifest's `options` once more."""
    values = {name: options[name] for name in _INHERITED}
    values["mix"] = tuple(f"{name}={weight}" for name, weight in options["weights"].items())
    values["cost"] = ",".join(f"{name}={value}" for name, value in options["cost_model"].items())
    return values


def merged(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Weights of two mixes, ``'source=weight'``; the second one's hold where both have one."""
    named = {one.rpartition("=")[0]: one for one in (*before, *after)}
    return tuple(named.values())
