"""What a plan is made with: validated once, stored whole in the manifest, hashed into the id."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Any, get_args

from packidx.errors import OptionError
from packidx.format.index import MAX_CAPACITY, GroupBy, OnLong, Schedule, Side
from packidx.io.sizes import parse_size
from packidx.lengths.scan import ENGINES
from packidx.plan.options.numbers import parse_share
from packidx.plan.options.resolved import DEFAULT_CHANCE, Margin

STRATEGIES = ("auto", "bfd", "balanced", "lp", "knapsack", "first-fit", "next-fit", "window:N")
ON_LONG = get_args(OnLong)
GROUP_BY = get_args(GroupBy)
SCHEDULES = get_args(Schedule)
SIDES = get_args(Side)
DEFAULT_MEMORY = "4GB"

# Kept free per pack when lengths are not exact and the user named no margin. Guesses of
# chars // 3 and 500 per image missed by 9-27 % of samples; counts precomputed elsewhere miss little
# but template tokens.
DEFAULT_MARGINS = {
    "exact": Fraction(0),
    "precomputed": Fraction(2, 100),
    "heuristic": Fraction(1, 10),
}

UNITS = ("repeats", "samples", "tokens", "label_tokens")
"""What weights may be: repeats of each sample, or shares of the epoch in one of three units."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan.

    Attributes:
        capacity: tokens a pack may hold.
        strategy: ``'auto'``: the fewer packs of ``bfd`` (best-fit-decreasing over all samples at
            once) and ``lp`` (column generation, tried where the certified gap exceeds 0.1 %), and
            ``balanced`` (samples of all lengths in every pack) where it needs no more. The rules
            of other packers, to compare: ``knapsack`` (NeMo's: worst-fit-decreasing),
            ``first-fit``, ``next-fit``, ``window:N`` (best-fit-decreasing of N samples at a time).
        seed: picks which of equal samples go together and the order of the packs.
        on_long: what becomes of a sample longer than a pack: ``drop`` it with reason
            ``too_long``, ``split`` it into pieces, ``truncate`` its tail, or ``error``.
        margin: share of the capacity left free, 0 <= margin < 1; None picks 0 for exact
            lengths, 0.02 where some are precomputed and 0.1 where some are heuristic, and what a
            calibration asks for where there is one.
        packing_ratio: plan for floor(packing_ratio * capacity) tokens; 1 - margin.
        shift: count length - 1, for trainers that shift labels before packing.
        overflow_chance: for estimated lengths with a calibration, instead of a margin: the chance
            that a pack holds more than its capacity, 0 < overflow_chance < 1; None picks 0.001.
        max_images, max_vision_patches, max_samples: caps per pack; None = none.
        group_by: ``'media_type'`` or ``'source'``: only samples of one kind share a pack.
        align: every sample takes a multiple of so many tokens (context parallelism: 2 * cp).
        pad_pack_to: every pack is padded to a multiple of so many tokens (pipeline, FP8).
        reserve: tokens kept free in every pack for what the reader adds (a dummy image in packs
            without any); a multiple of `align` and `pad_pack_to`.
        max_packs: keep so many packs, a seeded sample of them; the rest is dropped.
        mix: ``'source=weight'``, what `mix_by` says of them.
        mix_by: ``'repeats'``: a weight is the times a sample of that source is seen per epoch;
            ``'samples'``, ``'tokens'``, ``'label_tokens'``: the source's share of the epoch.
        holdout: share of the samples, by a hash of their key, that is kept out of training.
        side: ``'train'`` plans all but the holdout, ``'holdout'`` only that.
        exclude: Parquet file with the ``key`` (and ``source``) or ``sample_id`` of samples to
            leave out.
        epochs: variants of the epoch, each composed anew of the same samples (packed item by item,
            or drawn by `max_packs`: the same packs in another order).
        schedule: ``'stratified'``, ``'cost'`` or ``'random'``, the order of the packs.
        global_batch: packs per optimizer step, for the schedule; None: 512 or, of fewer than 4096
            packs, an eighth of them.
        micro_steps: parts of equal cost that a global batch is made of.
        cost: a preset of the cost model, a model's ``config.json``, or ``'weight=value,…'``.
        window_shards: plan so many shards at a time; None: all at once, if memory serves.
        window_samples: the same in samples, of whole shards where there are any.
        memory_limit: what planning may take, ``'4GB'``: larger plans are made in windows. It
            enters the plan only as the windows that it makes.
        aggregate: ``'duckdb'`` or ``'polars'`` sums the lengths up; the plan is the same.
    """

    capacity: int
    strategy: str = "auto"
    seed: int = 0
    on_long: str = "drop"
    margin: float | None = None
    packing_ratio: float | None = None
    shift: bool = False
    overflow_chance: float | None = None
    max_images: int | None = None
    max_vision_patches: int | None = None
    max_samples: int | None = None
    group_by: str | None = None
    align: int = 1
    pad_pack_to: int = 1
    reserve: int = 0
    max_packs: int | None = None
    mix: tuple[str, ...] = ()
    mix_by: str = "repeats"
    holdout: float | str | None = None
    side: str = "train"
    exclude: str | None = None
    epochs: int = 1
    schedule: str = "stratified"
    global_batch: int | None = None
    micro_steps: int = 8
    cost: str | None = None
    window_shards: int | None = None
    window_samples: int | None = None
    memory_limit: str = DEFAULT_MEMORY
    aggregate: str = "duckdb"

    def __post_init__(self) -> None:
        _within(
            "capacity", self.capacity, 1, MAX_CAPACITY, "choose how many tokens a pack may hold"
        )
        window = re.fullmatch(r"window:([1-9]\d{0,9})", self.strategy)
        if self.strategy == "window:N" or not window:
            _one_of("strategy", self.strategy, STRATEGIES, self.strategy != "window:N")
        _one_of("on-long", self.on_long, ON_LONG)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("mix-by", self.mix_by, UNITS)
        _one_of("side", self.side, SIDES)
        _one_of("aggregate", self.aggregate, ENGINES)
        if self.group_by is not None:
            _one_of("group-by", self.group_by, GROUP_BY)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None:
                _within(name.replace("_", "-"), value, 1, MAX_CAPACITY)
        self._check_ratio()
        self._check_padding()
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise OptionError(f"seed is {self.seed}: it must fit 64 bits")
        if self.global_batch is not None and self.global_batch % self.micro_steps:
            raise OptionError(
                f"global-batch {self.global_batch} is no multiple of the {self.micro_steps} "
                "micro-steps of a step: change one of them, for example to micro-steps "
                f"{math.gcd(self.global_batch, self.micro_steps)}"
            )
        if self.window_shards is not None and self.window_samples is not None:
            raise OptionError(
                f"window-shards {self.window_shards} and window-samples {self.window_samples} both "
                "say how large a window is: give one of them"
            )
        if self.side == "holdout" and self.holdout is None:
            raise OptionError("side holdout needs --holdout SHARE: how much was held out")
        if self.holdout is not None:
            parse_share(str(self.holdout))
        self.memory_bytes()

    def _check_ratio(self) -> None:
        if self.margin is not None and self.packing_ratio is not None:
            raise OptionError(
                f"margin {self.margin} and packing-ratio {self.packing_ratio} say the same thing "
                "(ratio = 1 - margin): give one of them"
            )
        if self.margin is not None and not 0 <= self.margin < 1:
            raise OptionError(f"margin is {self.margin}: it must be at least 0 and below 1")
        if self.packing_ratio is not None and not 0 < self.packing_ratio <= 1:
            raise OptionError(
                f"packing-ratio is {self.packing_ratio}: it must be above 0 and at most 1"
            )
        chance = self.overflow_chance
        if chance is None:
            return
        if self.margin is not None or self.packing_ratio is not None:
            raise OptionError(
                f"overflow-chance {chance} is what a margin is computed for: give no margin or "
                "packing-ratio with it"
            )
        if not 0 < chance < 1:
            raise OptionError(f"overflow-chance is {chance}: it must be above 0 and below 1")

    def _check_padding(self) -> None:
        for name, value in (("align", self.align), ("pad-pack-to", self.pad_pack_to)):
            if value > self.capacity:
                raise OptionError(
                    f"{name} is {value}, more than the {self.capacity} tokens of a pack: lower it"
                )
            if self.reserve % value:
                raise OptionError(
                    f"reserve {self.reserve} is no multiple of {name} {value}: raise it"
                )
        _within("reserve", self.reserve, 0, MAX_CAPACITY)

    def memory_bytes(self) -> int:
        """`memory_limit` in bytes."""
        limit = parse_size(self.memory_limit)
        if not limit:
            raise OptionError(f"memory-limit is {self.memory_limit!r}: say it like 4GB")
        return limit

    def ratio(self, weakest_method: str) -> Fraction:
        """The share of the capacity that is planned, given the weakest counting method used."""
        # str() first: 0.95 means 95/100, not the nearest binary fraction below or above it.
        if self.packing_ratio is not None:
            return Fraction(str(self.packing_ratio))
        if self.margin is not None:
            return 1 - Fraction(str(self.margin))
        return 1 - DEFAULT_MARGINS[weakest_method]

    def chance(self, weakest_method: str, is_calibrated: bool) -> float | None:
        """The chance of an overflow that the margin is computed for; None where none is computed.

        Args:
            weakest_method: the least exact way by which a usable row was counted.
            is_calibrated: whether the lengths say how far they are off.

        Raises:
            OptionError: a chance is asked for and there is nothing to compute a margin from.
        """
        stated = self.margin is not None or self.packing_ratio is not None
        if stated or weakest_method == "exact":
            return None
        if not is_calibrated:
            if self.overflow_chance is None:
                return None
            raise OptionError(
                f"overflow-chance is {self.overflow_chance}, but nobody knows how far these "
                "lengths are off: estimate with --calibrate N, or give a margin"
            )
        return DEFAULT_CHANCE if self.overflow_chance is None else self.overflow_chance

    def resolve(self, weakest_method: str, margin: Margin | None = None) -> ResolvedOptions:
        """These options with every default filled in that the lengths' methods decide.

        Args:
            weakest_method: the least exact way by which a usable row was counted.
            margin: the one that was computed for `chance`, if one was.
        """
        ratio, chance = self.ratio(weakest_method), None
        if margin is not None:
            ratio = Fraction(margin.planned_capacity, self.capacity)
            chance = self.chance(weakest_method, True)
        planned = math.floor(ratio * self.capacity) - self.reserve
        if planned < 1:
            raise OptionError(
                f"capacity {self.capacity} at packing ratio {float(ratio)} leaves no token"
                + (f" beside the {self.reserve} in reserve" if self.reserve else "")
                + f": lower the {'reserve' if self.reserve >= ratio * self.capacity else 'margin'}"
            )
        padded = planned // self.pad_pack_to * self.pad_pack_to
        if padded < max(self.align, self.pad_pack_to):
            raise OptionError(
                f"{padded} tokens are planned per pack, too few for align {self.align} and "
                f"pad-pack-to {self.pad_pack_to}: lower these or the margin"
            )
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values.update(margin=float(1 - ratio), packing_ratio=float(ratio), overflow_chance=chance)
        return ResolvedOptions(**values, planned_capacity=padded)


_COUNTS = (
    "max_images",
    "max_vision_patches",
    "max_samples",
    "align",
    "pad_pack_to",
    "max_packs",
    "epochs",
    "global_batch",
    "micro_steps",
    "window_shards",
    "window_samples",
)


@dataclass(frozen=True, slots=True)
class ResolvedOptions(PlanOptions):
    """Options as the manifest has them.

    Attributes:
        planned_capacity: floor(packing_ratio * capacity) - reserve, down to a multiple of
            `pad_pack_to`: no pack holds more.
        weights: times that a sample of each source is seen per epoch, as exact decimals or
            fractions; only sources with another weight than 1.
        cost_model: the weights of the cost model.
        excluded: fingerprint of the samples that `exclude` names.
        continues: what `plan --continue` goes on from: snapshots, states, oldest first.
        appends_to: id of the snapshot whose windows were taken over.
    """

    planned_capacity: int = 0
    weights: Mapping[str, str] = field(default_factory=dict)
    cost_model: Mapping[str, Any] = field(default_factory=dict)
    excluded: str | None = None
    continues: tuple[Mapping[str, Any], ...] = ()
    appends_to: str | None = None

    def __post_init__(self) -> None:
        """What was asked has been checked."""

    def to_json(self) -> dict[str, Any]:
        """As the manifest has them, without what changes no plan and the paths of what did."""
        options = asdict(self)
        for name in ("memory_limit", "aggregate", "exclude", "mix", "mix_by", "cost"):
            del options[name]
        options["holdout"] = None if self.holdout is None else str(self.holdout)
        options["continues"] = [dict(one) for one in self.continues]
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


def _one_of(name: str, value: str, allowed: tuple[str, ...], plain: bool = True) -> None:
    if value not in allowed or not plain:
        raise OptionError(f"{name} is {value!r}: choose one of {', '.join(allowed)}")


def _within(name: str, value: int, low: int, high: int, what: str = "it must be") -> None:
    if type(value) is not int or not low <= value <= high:
        joint = "" if what == "it must be" else ","
        raise OptionError(f"{name} is {value}: {what}{joint} {low} to {high}")
