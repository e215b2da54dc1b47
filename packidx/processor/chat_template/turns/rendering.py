"""A rendering: words, holes, and where the trained turns are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Render = Callable[..., str]
"""A conversation as text; ``prompt=True`` with the generation prompt, ``borders`` around
``{% generation %}`` blocks. Raises BadRecord."""
CharPosition = tuple[int, int]
"""A position that holds for every record: (i, characters after border i). Border 2h is the start
of literal h, border 2h + 1 its end, where hole h starts."""
CharStretch = tuple[CharPosition, CharPosition]


class Lost(Exception):
    """The literals and holes do not show where a turn is."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What is known of a hole."""

    turn: int
    kind: str
    """``"content"``, ``"reasoning"``, ``"tool"`` or ``"other"``."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a template writes around turns."""

    header: str
    """How a prompt ends, before what the model says; empty if unknown."""
    gap: str
    """White space between a turn's content and the token that ends it."""
    stop: str
    """The token that ends a turn; empty if unknown or there is none."""
    control: re.Pattern[str] | None
    """Any special token."""
    placeholder: re.Pattern[str] | None
    """Any medium's placeholder."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendering: ``literals[0] holes[0] literals[1] … literals[n]``."""

    literals: tuple[str, ...]
    holes: tuple[Hole | None, ...]
    blocks: tuple[CharStretch, ...]
    """The ``{% generation %}`` blocks."""
