"""A finding about a plan, and how its numbers are said."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A sentence, and about how many percent of data or time what it says costs."""

    weight: float
    sentence: str


def percent(share: float) -> str:
    """Percents with a digit, and never a share that is not 0 or 100 as if it were."""
    text = f"{share:.1f}"
    if text == "100.0" and share < 100:
        return "over 99.9 %"
    if text == "0.0" and share > 0:
        return "below 0.1 %"
    return f"{text} %" if share not in (0, 100) else f"{share:.0f} %"


def samples(number: int) -> str:
    return f"{number:,} sample{'' if number == 1 else 's'}"
