"""What a plan is made with: validated once, stored whole in the manifest, hashed into the id."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from packidx.errors import OptionError
from packidx.plan.margin import DEFAULT_CHANCE, Margin

STRATEGIES = ("bfd",)
ON_LONG = ("drop", "split", "truncate", "error")
MAX_CAPACITY = 1 << 30

# Kept free per pack when lengths are not exact and the user named no margin. Guesses of
# chars // 3 and 500 per image missed by 9-27 % of samples; counts precomputed elsewhere miss little
# but template tokens.
DEFAULT_MARGINS = {
    "exact": Fraction(0),
    "precomputed": Fraction(2, 100),
    "heuristic": Fraction(1, 10),
}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan.

    Attributes:
        capacity: tokens a pack may hold.
        strategy: ``'bfd'``, best-fit-decreasing over all samples at once.
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
    """

    capacity: int
    strategy: str = "bfd"
    seed: int = 0
    on_long: str = "drop"
    margin: float | None = None
    packing_ratio: float | None = None
    shift: bool = False
    overflow_chance: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MAX_CAPACITY:
            raise OptionError(
                f"capacity is {self.capacity}: choose how many tokens a pack may hold, "
                f"1 to {MAX_CAPACITY}"
            )
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("on-long", self.on_long, ON_LONG)
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
        if self.overflow_chance is not None:
            self._check_chance(self.overflow_chance)
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise OptionError(f"seed is {self.seed}: it must fit 64 bits")

    def _check_chance(self, chance: float) -> None:
        if self.margin is not None or self.packing_ratio is not None:
            raise OptionError(
                f"overflow-chance {chance} is what a margin is computed for: give no margin or "
                "packing-ratio with it"
            )
        if not 0 < chance < 1:
            raise OptionError(f"overflow-chance is {chance}: it must be above 0 and below 1")

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
        """These options with every default filled in.

        Args:
            weakest_method: the least exact way by which a usable row was counted.
            margin: the one that was computed for `chance`, if one was.
        """
        ratio, chance = self.ratio(weakest_method), None
        if margin is not None:
            ratio = Fraction(margin.planned_capacity, self.capacity)
            chance = self.chance(weakest_method, True)
        planned = math.floor(ratio * self.capacity)
        if planned < 1:
            raise OptionError(
                f"capacity {self.capacity} at packing ratio {float(ratio)} leaves no token: "
                "lower the margin"
            )
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values.update(margin=float(1 - ratio), packing_ratio=float(ratio), overflow_chance=chance)
        return ResolvedOptions(**values, planned_capacity=planned)


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """`PlanOptions` as the plan used them, with `planned_capacity` = floor(ratio * capacity)."""

    capacity: int
    strategy: str
    seed: int
    on_long: str
    margin: float
    packing_ratio: float
    shift: bool
    planned_capacity: int
    overflow_chance: float | None = None
    """What the margin was computed for; None where it was not."""

    def to_json(self) -> dict[str, Any]:
        """As the manifest has them; an option that is new and unused is left out, for the id's sake
        (it is a hash of these)."""
        options = asdict(self)
        if self.overflow_chance is None:
            del options["overflow_chance"]
        return options


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}: choose one of {', '.join(allowed)}")
