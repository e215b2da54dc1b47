"""Lengths as counts: the planner's whole view of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s, Ints

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many samples have each length.

    Attributes:
        lengths: int64 [n], distinct, descending, in tokens.
        counts: int64 [n], positive.
    """

    lengths: Int64s
    counts: Int64s

    @classmethod
    def of(cls, lengths: Ints) -> Histogram:
        """The histogram of `lengths`, any order, all positive."""
        if len(lengths) == 0:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        if int(lengths.max()) <= 1 << 24:
            size = int(lengths.max()) + 1
            dense = np.zeros(size, np.int64)
            for start in range(0, len(lengths), _BLOCK):  # bincount copies what it counts
                dense += np.bincount(lengths[start : start + _BLOCK], minlength=size)
            present = np.flatnonzero(dense)[::-1]
            return cls(present.astype(np.int64), dense[present].astype(np.int64))
        values, counts = np.unique(lengths, return_counts=True)
        return cls(values[::-1].astype(np.int64), counts[::-1].astype(np.int64))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(length, count), the longest first."""
        return zip(self.lengths.tolist(), self.counts.tolist(), strict=True)

    @property
    def num_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        return int(self.lengths @ self.counts)
