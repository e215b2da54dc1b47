"""Lower bounds on the number of packs, in integers: what no plan can beat.

A plan that keeps several limits (tokens, images, vision patches, samples) keeps each of them, so
the largest bound of any one limit holds for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packidx.arrays import Int64s
from packidx.pack.counts import Histogram


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

    `packidx.pack.strategies.lp` has a better one that takes seconds.
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
