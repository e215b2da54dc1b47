"""Samples as counts of lengths, packs as runs of equal ones: the planner's view of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s, Ints

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """Number of samples of each length.

    Attributes:
        lengths: int64 [n], distinct, descending, in tokens.
        counts: int64 [n], positive.
    """

    lengths: Int64s
    counts: Int64s

    @classmethod
    def of(cls, lengths: Ints) -> Histogram:
        """The histogram of `lengths`, any order, all positive."""
        longest = int(lengths.max(initial=0))
        if longest <= 1 << 24:
            dense = np.zeros(longest + 1, np.int64)
            for start in range(0, len(lengths), _BLOCK):  # bincount copies what it counts
                dense += np.bincount(lengths[start : start + _BLOCK], minlength=longest + 1)
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


@dataclass(frozen=True, slots=True)
class PackRuns:
    """A plan as runs of packs: each of `num_packs` packs gets `per_pack` equal samples.

    Runs stand in the order in which the samples, sorted by length descending, are dealt out.

    Attributes:
        first_pack: int64 [n], the lowest pack number of the run.
        num_packs: int64 [n].
        per_pack: int64 [n].
        position: int64 [n], samples that each of these packs holds already.
        total_packs: number of packs of the whole plan.
    """

    first_pack: Int64s
    num_packs: Int64s
    per_pack: Int64s
    position: Int64s
    total_packs: int

    def content(self, length: Int64s) -> tuple[Int64s, list[Int64s]]:
        """Return what the packs hold, as stretches of equal packs, from pack 0 on.

        Args:
            length: int64 [n], of each run's samples.

        Returns:
            int64 each: packs of a stretch; and of one of them the samples, Σ length and Σ length².
        """
        end = self.first_pack + self.num_packs
        bounds = np.unique(np.concatenate([self.first_pack, end]))
        first, last = np.searchsorted(bounds, self.first_pack), np.searchsorted(bounds, end)
        held = []
        for power in (0, 1, 2):
            change = np.zeros(len(bounds), np.int64)
            np.add.at(change, first, self.per_pack * length**power)
            np.subtract.at(change, last, self.per_pack * length**power)
            held.append(np.cumsum(change)[:-1])
        return np.diff(bounds), held


def exact_dot(a: Int64s, b: Int64s) -> int:
    """Σ a·b of non-negative integers (int64 [n] each), exact however large."""
    highest_a, highest_b = int(a.max(initial=0)), int(b.max(initial=0))
    if highest_a * highest_b * len(a) < 1 << 63:
        return int(a @ b)
    if highest_a < highest_b:
        a, b, highest_a = b, a, highest_b
    low = (highest_a.bit_length() + 1) // 2
    return (exact_dot(a >> low, b) << low) + exact_dot(a & ((1 << low) - 1), b)


@dataclass(slots=True)
class LengthPairs:
    """Sums over all pairs of samples that share a pack, in Python's unbounded integers."""

    pairs: int = 0
    sums: int = 0
    squares: int = 0
    products: int = 0

    def add(self, packs: Int64s, num_samples: Int64s, tokens: Int64s, squares: Int64s) -> None:
        """Count in `packs` packs each that hold `num_samples`, Σ length and Σ length²; [n] each."""
        others = np.maximum(num_samples - 1, 0)
        weights = packs * others
        self.pairs += exact_dot(weights, num_samples)
        self.sums += exact_dot(weights, tokens)
        self.squares += exact_dot(weights, squares)
        self.products += exact_dot(packs, tokens * tokens - squares)

    def correlation(self) -> float | None:
        """The correlation; None where no pack has two samples, or all of those are equal."""
        variance = self.pairs * self.squares - self.sums**2
        covariance = self.pairs * self.products - self.sums**2
        return covariance / variance if variance else None
