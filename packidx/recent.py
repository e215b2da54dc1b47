"""A small cache: what was used last."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of bounded total size; the newest entry stays whatever its size.

    Threads may share it without a lock, which a fork could inherit locked: every step is one
    operation of a dict, and a value that one thread throws out lives for as long as another holds
    it. What two of them miss at once is made twice.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[K, tuple[V, int]] = {}  # used longest ago first

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> list[tuple[K, V]]:
        """Return what is kept, with its keys, the latest last."""
        return [(key, value) for key, (value, _) in list(self._kept.items())]

    def get(self, key: K) -> V | None:
        """Return what was put under `key`, if it is still kept."""
        entry = self._kept.pop(key, None)
        if entry is None:
            return None
        self._kept[key] = entry
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep `value`, of `size` bytes, and drop the least recently used."""
        self._kept.pop(key, None)
        self._kept[key] = value, size
        kept = list(self._kept.items())
        excess = sum(size for _, (_, size) in kept) - self._limit
        for oldest, (_, size) in kept[:-1]:
            if excess <= 0:
                break
            self._kept.pop(oldest, None)
            excess -= size
