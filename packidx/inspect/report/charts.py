"""Vega-Lite specifications: each of rows as dictionaries, with what a mark tells in `told`.

Grammar: Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packidx.inspect.report.page import Spec

PALETTE = (
    *("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d"),
    "#8c8c8c",
)
"""Of sources, the smaller ones together in grey; readable on white and on black."""
GOOD, BAD, QUIET = "#4c78a8", "#e45756", "#9aa5b1"
Values = Sequence[dict[str, Any]]


def colours(names: Sequence[str]) -> Spec:
    """A scale that gives each of `names`, at most eight, the same colour in every chart."""
    return {"domain": list(names), "range": list(PALETTE[: len(names)])}


def _series(field: str, names: Sequence[str]) -> Spec:
    legend: Spec = {"title": None, "orient": "top", "labelLimit": 150, "columnPadding": 22}
    legend["columns"] = {"expr": "columns"}
    return {
        "field": field,
        "type": "nominal",
        "scale": colours(names),
        "sort": list(names),
        "legend": legend if len(names) > 1 else None,
    }


def histogram(
    values: Values, x: str, y: str, names: Sequence[str], mark: float | None = None
) -> Spec:
    """Bars from ``low`` to ``high`` on a logarithmic axis, and from ``bottom`` to ``top``.

    Args:
        names: of the series, the field ``series``.
        mark: where a line stands, such as the capacity.
    """
    axis = {"title": x, "format": "~s", "grid": False, "tickCount": {"expr": "ticks"}}
    bars: Spec = {
        "data": {"values": list(values)},
        "mark": {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.5},
        "encoding": {
            "x": {
                "field": "low",
                "type": "quantitative",
                "scale": {"type": "log", "nice": False},
                "axis": axis,
            },
            "x2": {"field": "high"},
            "y": {
                "field": "bottom",
                "type": "quantitative",
                "axis": {"title": y, "format": "~s", "tickCount": 4},
            },
            "y2": {"field": "top"},
            "color": _series("series", names),
            "description": {"field": "told"},
        },
    }
    if mark is None:
        return bars
    line: Spec = {
        "data": {"values": [{"at": mark, "told": f"capacity: {mark:,.0f} tokens"}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": BAD, "size": 2},
        "encoding": {
            "x": {"field": "at", "type": "quantitative"},
            "description": {"field": "told"},
        },
    }
    text = {**line, "mark": {"type": "text", "color": BAD, "align": "right", "dx": -4, "dy": 8}}
    text["encoding"] = {
        **line["encoding"],
        "y": {"value": 0},
        "text": {"value": "capacity"},
    }
    return {"layer": [bars, line, text]}


def bars(values: Values, y: str, colour: str = GOOD) -> Spec:
    """Upright bars of ``value`` for each ``name``, in this order."""
    order = list(dict.fromkeys(row["name"] for row in values))
    return {
        "data": {"values": list(values)},
        "mark": {"type": "bar", "color": colour},
        "encoding": {
            "x": {
                "field": "name",
                "type": "ordinal",
                "sort": order,
                "axis": {"title": None, "labelAngle": -40, "labelOverlap": True},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "axis": {"title": y, "format": "~s", "tickCount": 4},
            },
            "description": {"field": "told"},
        },
    }


def _lines(values: Values) -> Spec:
    """A line for each ``name``, in this order."""
    order = list(dict.fromkeys(row["name"] for row in values))
    axis = {"title": None, "labelLimit": 130, "ticks": False, "domain": False}
    return {"field": "name", "type": "nominal", "sort": order, "axis": axis}


def lying(values: Values, x: str) -> Spec:
    """Lying bars of ``value`` for each ``name``, ``label`` at their ends; red where ``bad``."""
    shared: Spec = {
        "y": _lines(values),
        "x": {
            "field": "value",
            "type": "quantitative",
            "axis": {"title": x, "format": "~s", "tickCount": {"expr": "ticks"}},
            "scale": {"domain": [0, 1.45 * max((row["value"] for row in values), default=1)]},
        },
        "description": {"field": "told"},
    }
    scale = {"domain": [False, True], "range": [GOOD, BAD]}
    colour: Spec = {"field": "bad", "type": "nominal", "legend": None, "scale": scale}
    return {
        "data": {"values": list(values)},
        "layer": [
            {"mark": "bar", "encoding": {**shared, "color": colour}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {**shared, "text": {"field": "label", "type": "nominal"}},
            },
        ],
    }


def shares(values: Values, names: Sequence[str], x: str, y: str) -> Spec:
    """Upright bars, each filled by the shares of its series: ``name``, ``series``, ``value``."""
    order = list(dict.fromkeys(row["name"] for row in values))
    return {
        "data": {"values": list(values)},
        "mark": {"type": "bar", "binSpacing": 0},
        "encoding": {
            "x": {
                "field": "name",
                "type": "ordinal",
                "sort": order,
                "scale": {"paddingInner": 0},
                "axis": {"title": x, "labelAngle": 0, "labelOverlap": True, "ticks": False},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "stack": "normalize",
                "axis": {"title": y, "format": "%", "tickCount": 4},
            },
            "color": _series("series", names),
            "order": {"field": "order"},
            "description": {"field": "told"},
        },
    }


def grouped(values: Values, names: Sequence[str], y: str) -> Spec:
    """Bars beside each other for each ``name``: ``series``, ``value``, a share."""
    order = list(dict.fromkeys(row["name"] for row in values))
    return {
        "data": {"values": list(values)},
        "mark": "bar",
        "encoding": {
            "x": {
                "field": "name",
                "type": "ordinal",
                "sort": order,
                "axis": {"title": None, "labelAngle": 0},
            },
            "xOffset": {"field": "series", "sort": list(names)},
            "y": {
                "field": "value",
                "type": "quantitative",
                "scale": {"domain": [0, 1]},
                "axis": {"title": y, "format": "%", "tickCount": 4},
            },
            "color": _series("series", names),
            "description": {"field": "told"},
        },
    }


def strips(values: Values, names: Sequence[str], capacity: int) -> Spec:
    """A row per ``name``: samples from ``start`` to ``end`` in their sources' colours."""
    return {
        "data": {"values": list(values)},
        "mark": {"type": "bar", "height": {"band": 0.8}, "stroke": "var(--panel)"},
        "encoding": {
            "y": _lines(values),
            "x": {
                "field": "start",
                "type": "quantitative",
                "scale": {"domain": [0, capacity], "nice": False},
                "axis": {
                    "title": "tokens",
                    "format": "~s",
                    "grid": False,
                    "tickCount": {"expr": "ticks"},
                },
            },
            "x2": {"field": "end"},
            "color": _series("series", names),
            "strokeDash": {
                "field": "cut",
                "type": "nominal",
                "legend": None,
                "scale": {"domain": [False, True], "range": [[1, 0], [3, 2]]},
            },
            "strokeWidth": {
                "field": "cut",
                "type": "nominal",
                "legend": None,
                "scale": {"domain": [False, True], "range": [0.5, 2.5]},
            },
            "description": {"field": "told"},
        },
    }
