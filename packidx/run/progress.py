"""How a long job tells the world how far it is; the library itself prints nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Anything that can be called so; it is called from the caller's own thread."""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """`done` of `total`: bytes in the phase ``'scan'``, records in the phase ``'count'``, files
        in the phase ``'upload'``, which is told by several threads."""


def silent(phase: str, done: int, total: int) -> None:
    """The progress that nobody looks at."""
