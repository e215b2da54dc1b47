"""Options with their defaults filled in, as the manifest has them, and taken over from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Any

from packidx.errors import OptionError
from packidx.format.index import Options
from packidx.format.terms import Side
from packidx.plan.cost_model import DEFAULT_PRESET, parse_cost
from packidx.plan.options import DEFAULTS, OPTIONS, PlanOptions

# Kept free per pack when lengths are not exact and the user named no margin. Guesses of
# chars // 3 and 500 per image missed by 9-27 % of samples; counts precomputed elsewhere miss little
# but template tokens.
DEFAULT_MARGINS = {
    "exact": Fraction(0),
    "precomputed": Fraction(2, 100),
    "heuristic": Fraction(1, 10),
}

# Options of which a plan takes one.
_RIVALS = ({"holdout", "holdout_only"},)


@dataclass(frozen=True, slots=True)
class ResolvedOptions(PlanOptions):
    """Options as the manifest has them.

    Attributes:
        planned_capacity: floor((1 - margin) * capacity) - reserve, down to a multiple of
            `pad_pack_to`: no pack holds more.
        weights: times that a sample of each source is seen per epoch, as exact decimals or
            fractions; only sources with another weight than 1.
        cost_model: the weights of the cost model.
        excluded: fingerprint of the samples that `exclude` names.
        continues: what `plan --continue` goes on from: snapshots, states, oldest first.
        appends_to: id of the snapshot whose windows were taken over.
        side: of the holdout, the one that is planned.
        window_shards, window_samples: what `window` states, if it is a number.
    """

    planned_capacity: int = 0
    weights: Mapping[str, str] = field(default_factory=dict)
    cost_model: Mapping[str, Any] = field(default_factory=dict)
    excluded: str | None = None
    continues: tuple[Mapping[str, Any], ...] = ()
    appends_to: str | None = None
    side: Side = "train"
    window_shards: int | None = None
    window_samples: int | None = None

    def __post_init__(self) -> None:
        """Check nothing: the options asked for have been checked."""

    def to_json(self) -> dict[str, Any]:
        """As the manifest has them, without what changes no plan and the paths of what did."""
        options = asdict(self)
        for name, said in OPTIONS.items():
            if not said.is_stored:
                del options[name]
        options["holdout"] = None if self.holdout is None else str(self.holdout)
        options["continues"] = [dict(state) for state in self.continues]
        return options

    def padded(self, lengths: Any) -> Any:
        """Tokens that pieces of `lengths` (integers, an array or one) take in a pack."""
        if self.align == 1:
            return lengths
        return -(-lengths // self.align) * self.align

    @property
    def longest(self) -> int:
        """Tokens that one piece may have."""
        return self.planned_capacity // self.align * self.align

    @property
    def caps(self) -> dict[str, int]:
        """Column of the packs table -> the most that a pack may have of it, where it is capped."""
        asked = {
            "num_images": self.max_images,
            "vision_patches": self.max_vision_patches,
            "num_samples": self.max_samples,
        }
        return {name: cap for name, cap in asked.items() if cap is not None}


def with_defaults(asked: PlanOptions, weakest_method: str) -> ResolvedOptions:
    """`asked` with every default filled in that `weakest_method` decides: the least exact way by
    which a usable row was counted."""
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
    values = {each.name: getattr(asked, each.name) for each in fields(PlanOptions)}
    values["margin"] = float(margin)
    if asked.holdout_only is not None:
        values |= {"holdout": asked.holdout_only, "side": "holdout"}
    return ResolvedOptions(**values, planned_capacity=padded)


def inherited(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that make the plan of a manifest's `options` once more."""
    return {name: value for name, value in _stated(options).items() if name not in _ONE_PLAN_S}


_ONE_PLAN_S = {name for name, said in OPTIONS.items() if said.is_stored and not said.is_inherited}


def _stated(options: Options) -> dict[str, Any]:
    """Return the fields of `PlanOptions` that a manifest's `options` say."""
    values = {name: getattr(options, name) for name, said in OPTIONS.items() if said.is_stored}
    values["mix"] = tuple(f"{name}={weight}" for name, weight in options.weights.items())
    if options.side == "holdout":
        values["holdout_only"] = values.pop("holdout")
    values["window"] = options.window_shards or options.window_samples or DEFAULTS["window"]
    weights = options.cost_model.to_json()
    values["cost"] = ",".join(f"{name}={value}" for name, value in weights.items())
    return values


def unusual(options: Options) -> dict[str, Any]:
    """Fields of `PlanOptions` that are not the default in a manifest, and the capacity."""
    values = _stated(options)
    if parse_cost(DEFAULT_PRESET).to_json() == options.cost_model.to_json():
        del values["cost"]
    if not options.margin:
        del values["margin"]
    return {
        name: value
        for name, value in values.items()
        if name == "capacity" or value not in (DEFAULTS[name], None, ())
    }


def changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`options` under `changes`, which win, also over other ways to say the same."""
    said = {name for name, value in changes.items() if value is not None}
    ousted = {name for rivals in _RIVALS if rivals & said for name in rivals}
    return {name: value for name, value in options.items() if name not in ousted} | dict(changes)


def merged(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """Weights of two mixes, ``'source=weight'``; the second one's hold where both have one."""
    named = {weight.rpartition("=")[0]: weight for weight in (*before, *after)}
    return tuple(named.values())
