"""Charts as pictures: drawn once, wide and narrow, in colours that the page's theme decides.

A page holds no script: what it shows was drawn when it was written, so that it opens at once, in a
mail or in a browser that runs nothing, and nothing in the data can run.
"""

from __future__ import annotations

import re
from typing import Any

from packidx.errors import missing_package
from packidx.inspect.report.figure import Figure, Spec

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
