"""What a check is, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    """Nothing wrong was seen; true also of what was not looked at."""
    detail: str
    """A line: how much was looked at, or the first faults, or why nothing was looked at."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """How much was looked at, counted on the way: ``{"files": 3, "bytes_hashed": 283462}``."""
    checked: bool = True
    """Whether it was looked at."""
    sources: Sequence[Mapping[str, Any]] = ()
    """Where samples were encoded: each source, as `samples.check_samples` tells it."""


def not_checked(name: str, why: str) -> Check:
    return Check(name, True, f"not checked: {why}", checked=False)


def number_of(number: int, plural: str) -> str:
    """A number of things, ``1 pack`` or ``2 packs``."""
    return f"{number:,} {plural.removesuffix('s') if number == 1 else plural}"


def short(digest: str) -> str:
    """The first digits of a digest; the other value beside it differs in them."""
    return digest[:12]


def few(complaints: Iterable[str]) -> str:
    """The first complaints, and how many more there are."""
    listed = list(complaints)
    more = f"; and {len(listed) - 5:,} more" if len(listed) > 5 else ""
    return "; ".join(listed[:5]) + more
