"""What a page shows: figures and tables, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
Spec = dict[str, Any]
"""Of Vega-Lite, without its size."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and the table of what it is drawn of.

    Attributes:
        title: what it shows.
        says: how it is read, in a sentence or two.
        columns: of the table.
        rows: numbers and words; few, however large the plan is.
        spec: None for a table alone.
        height: of the chart, in pixels.
        is_open: show the table at once.
        is_wide: take the page's whole width.
    """

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[Row]
    spec: Spec | None = None
    height: int = 200
    is_open: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A small image of a pack's sample.

    Attributes:
        caption: whose it is.
        data: of a WebP file.
    """

    caption: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Section:
    """Figures under one heading."""

    heading: str
    figures: Sequence[Figure]
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All that a page shows, in order."""

    title: str
    subtitle: str
    verdict: Sequence[str]
    numbers: Sequence[tuple[str, str]]
    """Name and value of what is told first."""
    sections: Sequence[Section]
    notes: Sequence[str] = field(default=())
    """What could not be shown, and why."""
