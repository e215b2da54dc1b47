"""Upper bounds of what methods and filters make of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_PER_ITEM = 64  # bytes of an item in a list, or so
_NUMBER = re.compile(r"\d+")


def text_length(value: str | list[Any] | tuple[Any, ...]) -> int:
    """Characters of a text, items of a list; 1 of a traced text."""
    return str.__len__(value) if isinstance(value, str) else len(value)


def _padded(text: Any, width: int = 80, *rest: Any, **named: Any) -> int:
    return max(len(str(text)), width)


def _tabs(text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * tabsize


def _indented(text: str, width: int | str = 4, *rest: Any, **named: Any) -> int:
    each = len(width) if isinstance(width, str) else width
    return len(text) + (text.count("\n") + 1) * each


def _replaced(text: Any, old: str, new: str, *rest: Any, **named: Any) -> int:
    said = str(text)
    return len(said) + said.count(old) * len(new)


def _translated(text: str, table: dict[int, Any]) -> int:
    longest = max((len(new) for new in table.values() if isinstance(new, str)), default=1)
    return len(text) * longest


def format_bound(text: str, *args: Any, **kwargs: Any) -> int:
    """Of ``%``, ``format`` and ``format_map``: widths in the text or given, and what is put in."""
    values: list[Any] = [*args, *kwargs.values()]
    for value in (*args, *kwargs.values()):
        if isinstance(value, dict):
            values += value.values()
    longest = max((text_length(value) for value in values if isinstance(value, str)), default=0)
    fields = text.count("%") + text.count("{")
    stated = sum(int(digits[:18]) for digits in _NUMBER.findall(text))
    if "*" in text or text.count("{") > 1:  # a width may be an argument
        stated += fields * max((v for v in values if type(v) is int), default=0)
    return len(text) + fields * longest + stated


def _items(value: Any, number: int, *rest: Any, **named: Any) -> int:
    return number * _PER_ITEM


# Each is called as the method or the filter is, and says how long its result is at most.
METHOD_BOUNDS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("format", "format_map"), format_bound),
    "expandtabs": _tabs,
    "replace": _replaced,
    "translate": _translated,
}
FILTER_BOUNDS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("batch", "slice", "round"), _items),
    "center": _padded,
    "format": format_bound,
    "indent": _indented,
    "replace": _replaced,
}
