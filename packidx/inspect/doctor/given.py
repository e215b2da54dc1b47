"""What the user named, and what is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    encode: str | None = None
    transform: str | None = None


@dataclass(frozen=True, slots=True)
class Makers:
    """What loads torch, which this package does not."""

    encoder: Callable[[str, str | None], Any]
    """A processor's folder or name, and the label policy in words."""
    dataset: Callable[[Index, Any, str | None], Any]
    """An index, an encoder and a transform's name, as a `PackedDataset`."""
