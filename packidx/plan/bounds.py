"""Lower bounds on the number of packs, in integers: what no plan can beat."""

from __future__ import annotations

import numpy as np

from packidx.plan.histogram import Histogram


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
    """The best bound known and its name, ``'volume'`` (⌈Σ/C⌉) or ``'L2'``."""
    bounds = {
        "volume": volume_bound(histogram, capacity),
        "L2": martello_toth_l2(histogram, capacity),
    }
    name = max(bounds, key=lambda bound: bounds[bound])  # the first, simpler one wins a tie
    return bounds[name], name
