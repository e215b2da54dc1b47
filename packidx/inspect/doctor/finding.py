"""What the user names for `packidx doctor`, what is handed in, and one thing that it looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from packidx.index import Index

PATIENCE = 20.0
"""Seconds that a store has for its first answer."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user named."""

    index: str
    roots: Mapping[str, str]
    processor: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the processor, in place of its folder's own; the plan's where there are none."""
    encode: str | None = None
    transform: str | None = None
    trusts_code: bool = False
    """Whether code in the processor's folder may be run."""


@dataclass(frozen=True, slots=True)
class Makers:
    """What loads torch, which this package does not."""

    encoder: Callable[[str, str | None, Mapping[str, Any]], Any]
    """A processor's folder or name, the label policy in words, and settings."""
    dataset: Callable[[Index, Any, str | None], Any]
    """An index, an encoder and a transform's name, as a `PackedDataset`."""


State = Literal["ok", "problem", "unknown", "absent"]
"""``unknown``: nobody could look; ``absent``: not here, and not needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, and what to do about it."""

    name: str
    state: State
    detail: str
    do: str | None = None
    """Of a problem, or of what is unknown."""


def words_of(error: BaseException) -> str:
    """An error's name and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")
