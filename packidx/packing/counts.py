"""Samples as counts of lengths, packs as runs of equal ones, and lower bounds on their number.

A plan that keeps several limits (tokens, images, vision patches, samples) keeps each of them, so
the largest bound of any one limit holds for all. Bounds are integers: what no plan can beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    if int(a.max(initial=0)) * int(b.max(initial=0)) * len(a) < 1 << 63:
        return int(a @ b)
    return int(a.astype(object) @ b.astype(object))


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
        """The correlation; None if no pack has two samples, or all of those are equal."""
        variance = self.pairs * self.squares - self.sums**2
        covariance = self.pairs * self.products - self.sums**2
        return covariance / variance if variance else None


def volume_bound(histogram: Histogram, capacity: int) -> int:
    """⌈Σ length / capacity⌉."""
    return -(-histogram.num_tokens // capacity)


def martello_toth_l2(histogram: Histogram, capacity: int) -> int:
    """The L2 bound of Martello and Toth (1990, section 8.3.2), over every useful threshold.

    For a threshold a ≤ C/2: samples above C − a cannot share with any of length ≥ a, those in
    (C/2, C − a] cannot share with each other, and what of [a, C/2] does not fit beside the latter
    needs packs of its own.
    """
    lengths, counts = histogram.lengths[::-1], histogram.counts[::-1]  # ascending
    if len(lengths) == 0:
        return 0
    cum_count = np.concatenate([[0], np.cumsum(counts)])
    cum_tokens = np.concatenate([[0], np.cumsum(lengths * counts)])
    half = np.searchsorted(lengths, capacity // 2, side="right")  # first length > C/2
    thresholds = np.concatenate([[0], lengths[:half]])
    above = np.searchsorted(lengths, capacity - thresholds, side="right")  # first > C − a
    small = np.searchsorted(lengths, thresholds, side="left")  # first ≥ a
    num_large = cum_count[-1] - cum_count[half]
    num_medium = cum_count[above] - cum_count[half]
    medium_tokens = cum_tokens[above] - cum_tokens[half]
    small_tokens = cum_tokens[half] - cum_tokens[small]
    overflow = np.maximum(small_tokens - (num_medium * capacity - medium_tokens), 0)
    return int((num_large + -(-overflow // capacity)).max())


def lower_bound(histogram: Histogram, capacity: int) -> tuple[int, str]:
    """The best of these bounds and its name: ``'volume'`` (⌈Σ/C⌉) or ``'L2'``.

    `packidx.packing.strategies.lp` has a better one that takes seconds.
    """
    bounds = {
        "volume": volume_bound(histogram, capacity),
        "L2": martello_toth_l2(histogram, capacity),
    }
    name = max(bounds, key=lambda bound: bounds[bound])  # the first, simpler one wins a tie
    return bounds[name], name


def joint_bound(sizes: Int64s, limits: Int64s, names: Sequence[str]) -> tuple[int, str]:
    """The fewest packs that any plan under all limits needs, and how that is known.

    Args:
        sizes: int64 [n, d], not negative; no item exceeds a limit.
        limits: int64 [d], not negative.
        names: of the d dimensions.

    Returns:
        The bound, and its name: ``'tokens volume'``, ``'vision_patches L2'``.
    """
    best = (0, f"{names[0]} volume")
    for name, values, limit in zip(names, sizes.T, limits.tolist(), strict=True):
        if not values.any():
            continue
        packs, how = lower_bound(Histogram.of(values[values > 0]), limit)
        if packs > best[0]:  # the first, simpler one wins a tie
            best = packs, f"{name} {how}"
    return best


def volume_packs(sizes: Int64s, limits: Int64s) -> int:
    """max over dimensions of ⌈Σ size / limit⌉: the simplest joint bound, 0 for no items."""
    totals = zip(sizes.sum(0).tolist(), limits.tolist(), strict=True)
    return max((-(-total // limit) for total, limit in totals if total), default=0)
