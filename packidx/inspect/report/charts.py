"""Vega-Lite specifications of charts, each of rows; a mark tells in words what it stands for.

Grammar: Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packidx.inspect.report.page import Spec

PALETTE = (
    *("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d"),
    "#8c8c8c",
)
"""Of sources, the smaller ones together in grey; readable on white and on black."""
GOOD, BAD = "#4c78a8", "#e45756"
_TOLD = {"description": {"field": "told"}}
_TICKS = {"tickCount": {"expr": "ticks"}}


def _number(name: str, title: str | None, axis: Spec, **channel: Any) -> Spec:
    """A quantitative axis of a field."""
    axis = {"title": title, "format": "~s", "tickCount": 4, **axis}
    return {"field": name, "type": "quantitative", "axis": axis, **channel}


def _names(rows: Iterable[Sequence[Any]], axis: Spec, **channel: Any) -> Spec:
    """An axis of names, the first of each row, in their order."""
    order = list(dict.fromkeys(row[0] for row in rows))
    axis = {"title": None, **axis}
    return {"field": "name", "type": "ordinal", "sort": order, "axis": axis, **channel}


def _series(names: Sequence[str]) -> Spec:
    """The colours of series, at most eight, the same in every chart."""
    legend: Spec = {"title": None, "orient": "top", "labelLimit": 150, "columnPadding": 22}
    legend["columns"] = {"expr": "columns"}
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(PALETTE[: len(names)])},
        "sort": list(names),
        "legend": legend if len(names) > 1 else None,
    }


def _chart(
    fields: str, rows: Iterable[Sequence[Any]], told: str, mark: Spec, **encoding: Spec
) -> Spec:
    """One mark for each row, whose cells are the `fields`; `told` is a format of them."""
    values = [dict(zip(fields.split(), row, strict=True)) for row in rows]
    values = [{**value, "told": told.format_map(value)} for value in values]
    return {"data": {"values": values}, "mark": mark, "encoding": {**encoding, **_TOLD}}


def histogram(
    rows: Sequence[Sequence[Any]], x: str, y: str, names: Sequence[str], mark: float | None = None
) -> Spec:
    """Bars on a logarithmic axis, one series upon the other.

    Args:
        rows: low, high, bottom, top, series, value.
        x: title of the axis.
        y: title of the axis.
        names: of the series.
        mark: where a line stands, such as the capacity.
    """
    bars = _chart(
        "low high bottom top series value",
        rows,
        f"{{low:,.0f}} to {{high:,.0f}} tokens, {{series}}: {{value:,}} {y}",
        {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.5},
        x=_number("low", x, {"grid": False, **_TICKS}, scale={"type": "log", "nice": False}),
        x2={"field": "high"},
        y=_number("bottom", y, {}),
        y2={"field": "top"},
        color=_series(names),
    )
    if mark is None:
        return bars
    told = "capacity: {at:,.0f} tokens"
    line = {"type": "rule", "strokeDash": [4, 3], "color": BAD, "size": 2}
    text = {"type": "text", "color": BAD, "align": "right", "dx": -4, "dy": 8}
    where: Spec = {"field": "at", "type": "quantitative"}
    label = _chart("at", [(mark,)], told, text, x=where, y={"value": 0}, text={"value": "capacity"})
    return {"layer": [bars, _chart("at", [(mark,)], told, line, x=where), label]}


def bars(rows: Sequence[Sequence[Any]], y: str, told: str) -> Spec:
    """Upright bars; rows are name and value."""
    x = _names(rows, {"labelAngle": -40, "labelOverlap": True})
    mark = {"type": "bar", "color": GOOD}
    return _chart("name value", rows, told, mark, x=x, y=_number("value", y, {}))


def _lines(rows: Sequence[Sequence[Any]]) -> Spec:
    return _names(rows, {"labelLimit": 130, "ticks": False, "domain": False})


def lying(rows: Sequence[Sequence[Any]], x: str) -> Spec:
    """Lying bars, labels at their ends; rows are name, value, label, and whether it is red."""
    end = 1.45 * max((row[1] for row in rows), default=1)
    shared = {"y": _lines(rows), "x": _number("value", x, _TICKS, scale={"domain": [0, end]})}
    scale = {"domain": [False, True], "range": [GOOD, BAD]}
    colour: Spec = {"field": "bad", "type": "nominal", "legend": None, "scale": scale}
    text = {"type": "text", "align": "left", "dx": 4}
    label: Spec = {"field": "label", "type": "nominal"}
    fields, told = "name value label bad", f"{{name}}: {{value:,}} {x}"
    return {
        "layer": [
            _chart(fields, rows, told, {"type": "bar"}, **shared, color=colour),
            _chart(fields, rows, told, text, **shared, text=label),
        ]
    }


def shares(rows: Sequence[Sequence[Any]], names: Sequence[str], x: str, y: str) -> Spec:
    """Upright bars, each filled by its series; rows are name, series, value, share in words."""
    axis = {"title": x, "labelAngle": 0, "labelOverlap": True, "ticks": False}
    ordered = [(*row, names.index(row[1])) for row in rows]
    return _chart(
        "name series value share order",
        ordered,
        f"{x} {{name}}, {{series}}: {{share}} of its tokens",
        {"type": "bar", "binSpacing": 0},
        x=_names(rows, axis, scale={"paddingInner": 0}),
        y=_number("value", y, {"format": "%"}, stack="normalize"),
        color=_series(names),
        order={"field": "order"},
    )


def grouped(rows: Sequence[Sequence[Any]], names: Sequence[str], y: str) -> Spec:
    """Bars beside each other; rows are name, series, value (a share)."""
    return _chart(
        "name series value",
        rows,
        "{name}, {series}: {value:.2%} useful",
        {"type": "bar"},
        x=_names(rows, {"labelAngle": 0}),
        xOffset={"field": "series", "sort": list(names)},
        y=_number("value", y, {"format": "%"}, scale={"domain": [0, 1]}),
        color=_series(names),
    )


def strips(rows: Sequence[Sequence[Any]], names: Sequence[str], capacity: int) -> Spec:
    """A strip per name; rows are name, series, first and last token, whether it is cut, label."""
    scale = {"domain": [0, capacity], "nice": False}
    cut: Spec = {"field": "cut", "type": "nominal", "legend": None}
    both = [False, True]
    return _chart(
        "name series start end cut label",
        rows,
        "{label}",
        {"type": "bar", "height": {"band": 0.8}, "stroke": "var(--panel)"},
        y=_lines(rows),
        x=_number("start", "tokens", {"grid": False, **_TICKS}, scale=scale),
        x2={"field": "end"},
        color=_series(names),
        strokeDash={**cut, "scale": {"domain": both, "range": [[1, 0], [3, 2]]}},
        strokeWidth={**cut, "scale": {"domain": both, "range": [0.5, 2.5]}},
    )
