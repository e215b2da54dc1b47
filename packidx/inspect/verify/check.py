"""What a check is, and what it looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.format import plan
from packidx.index.reader import Index


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    detail: str


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

    @abstractmethod
    def look(self, window: Window) -> None:
        """Look at the next window; complaints go to `wrong`."""

    @abstractmethod
    def done(self) -> str:
        """What holds, where there is no complaint."""

    def verdict(self) -> Check:
        return Check(self.name, not self.wrong, few(self.wrong) or self.done())

    def unless(self, holds: Any, complaint: str | Callable[[], str]) -> None:
        if not holds:
            self.wrong.append(complaint if isinstance(complaint, str) else complaint())


def few(complaints: list[str]) -> str:
    """The first complaints, and how many more there are."""
    more = f"; and {len(complaints) - 5} more" if len(complaints) > 5 else ""
    return "; ".join(complaints[:5]) + more


def ints(table: pa.Table, name: str) -> Int64s:
    values: Int64s = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return values
