"""How alike the lengths in packs are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s


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
