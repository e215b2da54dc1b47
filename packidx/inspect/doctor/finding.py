"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "problem", "unknown", "absent"]
"""``unknown``: nobody could look; ``absent``: not here, and not needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, and what to do about it."""

    name: str
    state: State
    detail: str
    do: str | None = None
    """Of a problem, or of what is unknown."""


def words_of(error: BaseException) -> str:
    """An error's name and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")
