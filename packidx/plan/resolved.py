"""Options with their defaults filled in, as the manifest has them, and taken over from there."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.format.manifest import decode_json
from packidx.plan.cost_model import DEFAULT_PRESET, parse_cost
from packidx.plan.memory import WEIGHTS, parse_memory
from packidx.plan.options import DEFAULTS, OPTIONS, PlanOptions, micro_steps_of

# Kept free per pack when lengths are not exact and the user named no margin. Guesses of
# chars // 3 and 500 per image missed by 9-27 % of samples; counts precomputed elsewhere miss little
# but template tokens.
DEFAULT_MARGINS = {
    "exact": Fraction(0),
    "precomputed": Fraction(2, 100),
    "heuristic": Fraction(1, 10),
}


def with_defaults(asked: PlanOptions, weakest_method: str) -> Options:
    """Return `asked` as a manifest has it, of a plan that goes on from no other one, leaves nothing
    out, is one window and sees all sources once.

    Args:
        weakest_method: the least exact way by which a usable row was counted.
    """
    # str() first: 0.05 means 5/100, not the nearest binary fraction below or above it.
    stated = None if asked.margin is None else Fraction(str(asked.margin))
    margin = DEFAULT_MARGINS[weakest_method] if stated is None else stated
    filled = (1 - margin) * asked.capacity
    planned = math.floor(filled) - asked.reserve
    if planned < 1:
        raise OptionError(
            f"capacity {asked.capacity} less margin {float(margin):g} leaves no token"
            + (f" beside the {asked.reserve} in reserve" if asked.reserve else "")
            + f": lower the {'reserve' if asked.reserve >= filled else 'margin'}"
        )
    padded = planned // asked.pad_pack_to * asked.pad_pack_to
    if padded < max(asked.align, asked.pad_pack_to):
        raise OptionError(
            f"{padded} tokens are planned per pack, too few for align {asked.align} and "
            f"pad-pack-to {asked.pad_pack_to}: lower these or the margin"
        )
    is_rest = asked.holdout_only is not None
    share = asked.holdout_only if is_rest else asked.holdout
    cost = parse_cost(DEFAULT_PRESET if asked.cost is None else asked.cost)
    nothing = ("window_shards", "window_samples", "excluded")
    values = {name: getattr(asked, name) for name, said in OPTIONS.items() if said.is_stored}
    values |= {"margin": float(margin), "planned_capacity": padded, "cost_model": cost.to_json()}
    values |= {"holdout": None if share is None else str(share)}
    memory = parse_memory(asked.memory, asked.memory_model)
    values |= {"memory": None if memory is None else memory.to_json()}
    values |= {"side": "holdout" if is_rest else "train", "weights": {}, "continues": None}
    return decode_json(Options, values | dict.fromkeys(nothing))


def options_to_inherit(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that make the plan of a manifest's `options` once more."""
    values = {name: getattr(options, name) for name, said in OPTIONS.items() if said.is_stored}
    values["mix"] = tuple(f"{name}={weight}" for name, weight in options.weights.items())
    if options.side == "holdout":
        values["holdout_only"] = values.pop("holdout")
    values["window"] = options.window_shards or options.window_samples or DEFAULTS["window"]
    if (memory := options.memory) is not None:
        values["memory"], numbers = str(memory.limit), memory.to_json()
        values["memory_model"] = ",".join(f"{n}={numbers[key]}" for n, key in WEIGHTS.items())
    weights = options.cost_model.to_json()
    values["cost"] = ",".join(f"{name}={value}" for name, value in weights.items())
    return values


def changed_options(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that are not the default in a manifest, and the capacity."""
    values = options_to_inherit(options)
    if parse_cost(DEFAULT_PRESET).to_json() == options.cost_model.to_json():
        del values["cost"]
    if not options.margin:
        del values["margin"]
    if options.micro_steps == micro_steps_of(options.global_batch):
        del values["micro_steps"]
    return {
        name: value
        for name, value in values.items()
        if name == "capacity" or value not in (DEFAULTS[name], None, ())
    }
