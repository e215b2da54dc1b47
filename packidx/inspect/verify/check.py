"""What a check is, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


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
    sources: tuple[SourceSeen, ...] = ()
    """Where samples were encoded: each source, those that differ first."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A sample that is not as it was planned."""

    sample_id: int
    key: str | None
    planned: int
    materialized: int | None
    """Tokens; None where it could not be built."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What the encoded samples of one source were like. Lengths are tokens, of whole samples."""

    source: str
    num_encoded: int
    num_pieces: int
    """Of those, pieces of longer samples, of which only the end is compared."""
    num_failed: int
    """Could not be built."""
    num_different: int
    planned_median: float | None
    materialized_median: float | None
    largest_difference: int
    """Materialized less planned, the one that is farthest from 0."""
    examples: tuple[Difference, ...]


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
