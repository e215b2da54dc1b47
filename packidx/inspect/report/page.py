"""A report as one HTML file: no script, nothing from the network, light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

import jinja2

from packidx.errors import missing_package
from packidx.words import count

MAX_SERIES = 8
"""Sources with a colour of their own; of more, the smaller ones are one."""
OTHERS = "all others"
NAMELESS = "(no name)"


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
        ordered = list(dict.fromkeys(ordered))
        own = ordered if len(ordered) <= MAX_SERIES else ordered[: MAX_SERIES - 1]
        self.names = own if len(own) == len(ordered) else [*own, OTHERS]
        self._own = set(own)

    def of(self, name: Any) -> str:
        """The series of a source."""
        shown = short_name(name)
        if shown in self._own:
            return shown
        if OTHERS not in self.names:  # it has no sample in the plan
            self.names.append(OTHERS)
        return OTHERS


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
        rows: whole numbers, None for unknown ones, and words; few, however large the plan is.
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
class Section:
    """Figures under one heading."""

    heading: str
    figures: Sequence[Figure | None]
    """None stands for what there is nothing to show of."""


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


def page_of(report: Report, drawer: Drawer) -> str:
    """The whole file; what comes from the data is escaped by the template."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"kind": _kind, "shown": _shown}
    template = environment.from_string(files(__package__).joinpath("page.html").read_text())
    return template.render(report=report, draw=drawer.draw)


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


WIDE, WIDER, NARROW = 560, 1180, 235
"""Pixels of the plot itself, beside its labels: on a desk, over its whole width, and on a phone."""
_INK, _GRID = "#010203", "#040506"  # stand for what the page's style says
_NAME = "\u2060"  # a joiner of words, which has no width
_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "domainColor": _GRID,
        "tickColor": _GRID,
        "gridColor": _GRID,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": _INK, "labelFontSize": 11, "symbolType": "square"},
    "text": {"color": _INK, "fontSize": 11},
}
_MARK = re.compile(
    r'<(path|text)( aria-label="([^"]*)" role="graphics-symbol"[^>]*?)(/>|>)', re.DOTALL
)


class Drawer:
    """Draws figures by vl-convert.

    Raises:
        MissingExtraError: it is not installed.
    """

    def __init__(self) -> None:
        try:
            import vl_convert
        except ModuleNotFoundError as error:
            raise missing_package("a report", error, '"packidx[report]"') from None
        self._convert: Any = vl_convert.vegalite_to_svg

    def draw(self, figure: Figure) -> tuple[str, str]:
        """The wide and the narrow picture of a figure that has a spec."""
        assert figure.spec is not None
        width = WIDER if figure.is_wide else WIDE
        return self._drawn(figure, width, 8, 8), self._drawn(figure, NARROW, 2, 4)

    def _drawn(self, figure: Figure, width: int, columns: int, ticks: int) -> str:
        spec = {
            **_marked(figure.spec or {}),
            "width": width,
            "height": figure.height,
            "autosize": {"type": "pad", "contains": "content"},
            "config": _CONFIG,
            "params": [{"name": "columns", "value": columns}, {"name": "ticks", "value": ticks}],
        }
        return _themed(str(self._convert(spec)).replace(_NAME, ""), figure.title)


def _marked(value: Any, key: str = "") -> Any:
    """A spec in which every name of the data begins with `_NAME`: Vega looks names up in JavaScript
    objects, where ``constructor`` and ``toString`` mean something."""
    if isinstance(value, dict):
        return {name: _marked(member, name) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(member, key) for member in value]
    is_name = isinstance(value, str) and key in ("name", "series", "domain", "sort")
    return _NAME + value if is_name else value


def _themed(svg: str, title: str) -> str:
    """With the page's colours, a title on each mark, and no size but its proportions."""
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    svg = _MARK.sub(_titled, svg)
    head, begin, rest = svg.partition(">")
    head = re.sub(r' (xmlns:xlink|class|version)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(title)}"{begin}{rest}'


def _titled(match: re.Match[str]) -> str:
    """A mark with what it tells as its title, which browsers show where the pointer rests."""
    tag, attributes, told, end = match.groups()
    attributes = re.sub(r' (aria-label|role|aria-roledescription)="[^"]*"', "", attributes)
    title = f"<title>{told}</title>"
    return f"<{tag}{attributes}>{title}" + (f"</{tag}>" if end == "/>" else "")
