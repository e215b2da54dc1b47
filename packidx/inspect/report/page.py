"""A report as one HTML file: no script, nothing from the network, light and dark.

A chart is boxes in percent of their frame, which the template places and browsers fit to the
screen: names of the data are text of the page, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2

from packidx.words import count

MAX_SERIES = 8
"""Sources with a colour of their own; of more, the smaller ones are one."""
OTHERS = "all others"
NAMELESS = "(no name)"
GOOD, BAD = 0, 3
"""Colours of page.html."""


def share(part: float, whole: float, digits: int = 1) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.{digits}f} %" if whole else "–"


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Text without characters that steer a terminal, the direction of writing, or nothing."""
    return _UNSEEN.sub("\ufffd", text)


def short_name(name: Any, most: int = 40) -> str:
    """A name that fits."""
    text = NAMELESS if name is None else printable(str(name))
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Series:
    """The largest sources by their own names, the rest under one."""

    def __init__(self, sizes: Sequence[tuple[Any, int]]) -> None:
        """`sizes`: names, None among them, and how large each is."""
        self.num_sources = len(sizes)
        ordered = [short_name(name) for name, _ in sorted(sizes, key=lambda pair: -pair[1])]
        names = list(dict.fromkeys(ordered))
        self.names = names if len(names) <= MAX_SERIES else [*names[: MAX_SERIES - 1], OTHERS]

    def of(self, name: Any) -> str:
        """The series of a source."""
        shown = short_name(name)
        return shown if shown in self.names else self.names[-1]


class Box(NamedTuple):
    """A part of a bar, in percent of the chart's frame, and what it tells."""

    colour: int
    start: float
    size: float
    told: str
    is_cut: bool = False


class Bar(NamedTuple):
    """A bar of boxes, with a name before it and a label behind it."""

    name: str
    boxes: list[Box]
    label: str = ""


class Chart(NamedTuple):
    """Bars beneath each other."""

    bars: Sequence[Bar]
    names: Sequence[str] = ()
    """Of the colours, in their order; the legend, where there are several."""


Drawn = tuple[str, Mapping[int, float], str]
"""A bar: its name, its values by colour, its label."""


def chart_of(
    bars: Sequence[Drawn],
    what: str,
    names: Sequence[str] = (),
    *,
    shown: Callable[[float], str] = count,
) -> Chart:
    """Bars of values end to end.

    Args:
        what: the unit.
        names: of the colours.
        shown: a value as the pointer tells it.
    """
    end = max((sum(values.values()) for _, values, _ in bars), default=0) or 1
    drawn = []
    for name, values, label in bars:
        start, boxes = 0.0, []
        for colour, value in values.items():
            if value or len(values) == 1:
                own = f", {names[colour]}" if names else ""
                told = f"{name}{own}: {shown(value)} {what}"
                boxes.append(Box(colour, 100 * start, 100 * value / end, told))
                start += value / end
        drawn.append(Bar(name, boxes, label))
    return Chart(drawn, names)


Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and the table of what it is drawn of.

    Attributes:
        title: what it shows.
        says: how it is read, in a sentence or two.
        columns: of the table.
        rows: whole numbers, None for unknown ones, and words; few, however large the plan is.
        chart: None for a table alone.
        is_wide: take the page's whole width.
    """

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[Row]
    chart: Chart | None = None
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All that a page shows, in order."""

    title: str
    subtitle: str
    verdict: Sequence[str]
    numbers: Sequence[tuple[str, str]]
    """Name and value of what is told first."""
    figures: Sequence[Figure | None]
    """None: a figure without data."""
    notes: Sequence[str] = field(default=())
    """What could not be shown, and why."""


def page_of(report: Report) -> str:
    """The whole file; what comes from the data is escaped by the template."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"kind": _kind, "shown": _shown, "percent": "{:.3f}%".format}
    template = environment.from_string(files(__package__).joinpath("page.html").read_text())
    return template.render(report=report)


def _shown(cell: Any) -> str:
    """A table's cell: a number with its thousands apart, a dash for none, or words."""
    return "–" if cell is None else count(cell) if isinstance(cell, int) else str(cell)


def _kind(cell: Any) -> str:
    """The style's class of a table's cell."""
    text = _shown(cell)
    bare = text.removesuffix(" %").replace(",", "").replace(".", "").replace("-", "")
    if bare.isascii() and bare.isdigit() and len(text) < 20:
        return "number"
    return "long" if len(text) > 24 else ""
