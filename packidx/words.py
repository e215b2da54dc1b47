"""Numbers as people read them."""

from __future__ import annotations


def format_count(value: float | None) -> str:
    """A whole number with thousands separators, or a dash for unknown."""
    return "–" if value is None else f"{value:,.0f}"


def format_percent(share: float | None, digits: int = 2) -> str:
    """A share in percent, or a dash for unknown."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def number_of(value: int | None, what: str) -> str:
    """A number of things, ``1 pack`` or ``2 packs``."""
    return f"{format_count(value)} {what}{'' if value == 1 else 's'}"
