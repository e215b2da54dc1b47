"""Numbers and names as a page has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

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
