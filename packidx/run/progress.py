"""How a long job tells the world how far it is; the library itself prints nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Anything that can be called so; it is called from the caller's own thread."""

    def __call__(self, doing: str, done: int, total: int, /) -> None:
        """`done` of `total`: bytes where `doing` is ``'scan'``, records in ``'count'``,
        packs in ``'packs'``, files in ``'upload'`` and ``'files'``, which are told by several
        threads."""


def silent(doing: str, done: int, total: int) -> None:
    """The progress that nobody looks at."""
