"""A report as one HTML file: no script, nothing from the network, light and dark."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape as escaped
from typing import Any

from packidx.errors import missing_package

MAX_SERIES = 8
"""Sources with a colour of their own; of more, the smaller ones are one."""
OTHERS = "all others"
NAMELESS = "(no name)"


def count(value: int | float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}"


def share(part: float, whole: float, digits: int = 1) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.{digits}f} %" if whole else "–"


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Text without characters that steer a terminal, the direction of writing, or nothing."""
    return _UNSEEN.sub("\ufffd", text)


def short(name: Any, most: int = 40) -> str:
    """A name that fits."""
    text = NAMELESS if name is None else visible(str(name))
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Series:
    """The largest sources by their own names, the rest under one."""

    def __init__(self, sizes: Sequence[tuple[Any, int]]) -> None:
        """`sizes`: names, None among them, and how large each is."""
        self.num_sources = len(sizes)
        ordered = [short(name) for name, _ in sorted(sizes, key=lambda pair: -pair[1])]
        ordered = list(dict.fromkeys(ordered))
        own = ordered if len(ordered) <= MAX_SERIES else ordered[: MAX_SERIES - 1]
        self.names = own if len(own) == len(ordered) else [*own, OTHERS]
        self._own = set(own)

    def of(self, name: Any) -> str:
        """The series of a source."""
        shown = short(name)
        if shown in self._own:
            return shown
        if OTHERS not in self.names:  # it has no sample in the plan
            self.names.append(OTHERS)
        return OTHERS

    def order(self, name: str) -> int:
        """Where a series stands."""
        return self.names.index(name)


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


_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5c6b7a; --paper: #ffffff;
  --panel: #f6f8fa; --grid: #d8dee4; --accent: #4c78a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa7b4; --paper: #0f151b;
  --panel: #18212a; --grid: #33404d; --accent: #79a8d8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 92rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; }
p { margin: .2rem 0 .7rem; color: var(--soft); overflow-wrap: anywhere; }
.verdict { margin: 1rem 0; padding: .8rem 1rem .8rem 2rem; background: var(--panel);
  border-left: 4px solid var(--accent); border-radius: 4px; }
.verdict li { margin: .2rem 0; overflow-wrap: anywhere; }
.verdict li:first-child { font-weight: 600; }
.numbers { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0 0; }
.numbers div { background: var(--panel); border-radius: 4px; padding: .5rem .9rem; }
.numbers dt { color: var(--soft); font-size: .8rem; }
.numbers dd { margin: 0; font-size: 1.2rem; }
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); }
.across { grid-column: 1 / -1; }
code { background: var(--grid); border-radius: 3px; padding: 0 .25em; }
figure { margin: 0; padding: 1rem; background: var(--panel); border-radius: 6px; min-width: 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.narrow { display: none; }
@media (max-width: 600px) { .wide { display: none; } .narrow { display: block; }
  body { padding: 1rem .6rem 3rem; } figure { padding: .7rem; } }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--soft); font-size: .85rem; }
.rows { overflow-x: auto; max-height: 22rem; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: normal; }
th, td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--grid); vertical-align: top;
  }
td.long { overflow-wrap: anywhere; min-width: 9rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.pictures { display: flex; flex-wrap: wrap; gap: .6rem; }
.pictures img { display: block; max-width: 160px; border-radius: 3px; }
.pictures figcaption { font-size: .7rem; color: var(--soft); max-width: 160px;
  overflow-wrap: anywhere; }
.pictures figure { padding: .5rem; }
"""


def escape(text: str) -> str:
    """Text for HTML."""
    return escaped(visible(text))


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
Draw = Callable[[Figure], tuple[str, str]]


def page_of(report: Report, draw: Draw) -> str:
    """The whole file.

    Args:
        draw: makes of a figure its wide and its narrow picture, as SVG.
    """
    title = escape(report.title)
    verdict = "".join(f"<li>{_sentence(each)}</li>" for each in report.verdict)
    numbers = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in report.numbers
    )
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
        f"<h1>{title}</h1>\n<p>{escape(report.subtitle)}</p>\n",
        f'<ul class="verdict">{verdict}</ul>\n' if verdict else "",
        f'<dl class="numbers">{numbers}</dl>\n',
        *(_section(section, draw) for section in report.sections if section.figures),
    ]
    if report.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(f"<h2>Not shown</h2>\n<ul>{notes}</ul>\n")
    return "".join([*parts, "</body>\n</html>\n"])


def _sentence(words: str) -> str:
    """Words with a capital and a full stop, what is between backticks as code."""
    text = escape(f"{words[:1].upper()}{words[1:]}".rstrip(".") + ".")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)


def _section(section: Section, draw: Draw) -> str:
    figures = "".join(_figure(figure, draw) for figure in section.figures)
    pictures = "".join(map(_picture, section.pictures))
    below = f'<div class="pictures">{pictures}</div>\n' if pictures else ""
    heading = escape(section.heading)
    return f'<h2>{heading}</h2>\n<div class="figures">{figures}</div>\n{below}'


def _figure(figure: Figure, draw: Draw) -> str:
    chart = ""
    if figure.spec is not None:
        wide, narrow = draw(figure)
        chart = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    says = f"<p>{escape(figure.says)}</p>" if figure.says else ""
    table = _table(figure)
    if not figure.is_open and figure.rows:
        table = f"<details><summary>as a table</summary>{table}</details>"
    across = ' class="across"' if figure.is_wide else ""
    return f"<figure{across}><h3>{escape(figure.title)}</h3>{says}{chart}{table}</figure>\n"


def _table(figure: Figure) -> str:
    if not figure.rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in figure.columns)
    rows = "".join(
        "<tr>" + "".join(_cell(str(value)) for value in row) + "</tr>" for row in figure.rows
    )
    header = f"<thead><tr>{head}</tr></thead>" if any(figure.columns) else ""
    return f'<div class="rows"><table>{header}<tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    bare = text.removesuffix(" %").replace(",", "").replace(".", "").replace("-", "")
    kind = ' class="long"' if len(text) > 24 else ""
    if bare.isascii() and bare.isdigit() and len(text) < 20:
        kind = ' class="number"'
    return f"<td{kind}>{escape(text)}</td>"


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><img alt="" src="data:image/webp;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


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
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'{head} role="img" aria-label="{label}"{begin}{rest}'


def _titled(match: re.Match[str]) -> str:
    """A mark with what it tells as its title, which browsers show where the pointer rests."""
    tag, attributes, told, end = match.groups()
    attributes = re.sub(r' (aria-label|role|aria-roledescription)="[^"]*"', "", attributes)
    title = f"<title>{told}</title>"
    return f"<{tag}{attributes}>{title}" + (f"</{tag}>" if end == "/>" else "")
