"""Options with their defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_CHANCE = 0.001
"""Chance of an overflow per pack that a plan accepts unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a calibration lets packs be filled."""

    planned_capacity: int
    num_samples: int
    """Samples that were encoded for it."""
    source: str | None
    """The source whose errors ask for most of it; None where no estimate was too low."""
