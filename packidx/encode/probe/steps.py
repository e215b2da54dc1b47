"""Sounds between two lengths that became the same text became it, too.

Of ten thousand clips hardly two are equally long, and a processor makes a token of hundreds of
samples. Where a longer sound never becomes less (`Kind.rises`, which is tried), a length between
two that were probed with one result needs no probe.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from packidx.encode.probe.table import Learnt


class Steps:
    """Lengths of sound that were probed."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._learnt: dict[int, Learnt] = {}

    def add(self, length: int, learnt: Learnt) -> None:
        """Remember what a sound of so many samples became."""
        if length not in self._learnt:
            bisect.insort(self._lengths, length)
        self._learnt[length] = learnt

    def __getitem__(self, length: int) -> Learnt | None:
        """What a sound becomes; None where it must be probed."""
        if length in self._learnt:
            return self._learnt[length]
        at = bisect.bisect(self._lengths, length)
        if not 0 < at < len(self._lengths):
            return None
        below, above = (self._learnt[self._lengths[n]] for n in (at - 1, at))
        return below if below == above and below.problem is None else None


def outside_in(lengths: Iterable[int]) -> list[int]:
    """The same lengths in an order that soon has some around the others: both ends, the middle, the
    middles of the halves …"""
    ascending = sorted(set(lengths))
    order = [ascending[0], ascending[-1]] if ascending else []
    spans = [(0, len(ascending) - 1)]
    for low, high in spans:  # it grows
        middle = (low + high) // 2
        if low < middle:
            order.append(ascending[middle])
            spans += [(low, middle), (middle, high)]
        elif high - low > 1:
            spans.append((low + 1, high))
    return list(dict.fromkeys([*order, *ascending]))
