"""What a check is, and what it looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.format import index as plan
from packidx.index.reader import Index


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


@dataclass(frozen=True, slots=True)
class Window:
    """The tables of one window, what the manifest says of it, and where it begins."""

    number: int
    stated: plan.Window
    first_row: int
    packs: pa.Table
    samples: pa.Table
    dropped: pa.Table


class Looker(ABC):
    """One check: `look` at every window, then the verdict. Only the first few faults are told."""

    name = ""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.options, self.result = index.snapshot.options, index.snapshot.result
        self.wrong: list[str] = []
        self.numbers: Counter[str] = Counter()

    @abstractmethod
    def look(self, window: Window) -> None:
        """Look at the next window; complaints go to `wrong`, what was looked at to `numbers`."""

    @abstractmethod
    def done(self) -> str:
        """What holds, where there is no complaint."""

    def verdict(self) -> Check:
        detail = few(self.wrong) or self.done()
        return Check(self.name, not self.wrong, detail, dict(self.numbers))

    def unless(self, holds: Any, complaint: str | Callable[[], str]) -> None:
        if not holds:
            self.wrong.append(complaint if isinstance(complaint, str) else complaint())

    def counted(self, name: str, what: str = "") -> str:
        """One of `numbers` in words: ``725 packs``."""
        return number_of(self.numbers[name], what or name)


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


def ints(table: pa.Table, name: str) -> Int64s:
    values: Int64s = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return values
