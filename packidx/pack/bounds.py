"""Lower bounds on the number of packs, in integers: what no plan can beat."""

from __future__ import annotations

import numpy as np

from packidx.pack.histogram import Histogram

_MOST_PARTS = 40  # of the capacity, that a dual-feasible function counts in


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


def dual_feasible(histogram: Histogram, capacity: int) -> int:
    """The best bound by two families of dual-feasible functions.

    Such a function f keeps Σ f(length) ≤ f(capacity) for whatever fits into a pack, so that
    ⌈Σ f(length) / f(capacity)⌉ over all samples is a bound (Clautiaux, Alves and Valério de
    Carvalho 2010, "A survey of dual-feasible and superadditive functions"):

    - u^(k) of Fekete and Schepers (2001): with k + 1 equal parts of the capacity, a length of more
      than i parts counts as i / k; one of exactly i parts as i / (k + 1).
    - f_CCM of Carlier, Clautiaux and Moukrim (2007), its parameter s one cell: a length x below
      half the capacity counts as 2⌊x / s⌋, above half as what it leaves, 2(⌊C / s⌋ −
      ⌊(C − x) / s⌋), and just half as ⌊C / s⌋.
    """
    lengths, counts = histogram.lengths, histogram.counts
    if len(lengths) == 0:
        return 0
    best = 0
    for k in range(1, _MOST_PARTS + 1):
        parts, inside = np.divmod(lengths * (k + 1), capacity)
        # In units of 1 / (k (k + 1)): a pack counts as k (k + 1).
        worth = np.where(inside == 0, parts * k, parts * (k + 1))
        best = max(best, -(-int(worth @ counts) // (k * (k + 1))))
    for cell in _cells(histogram, capacity):
        cells = capacity // cell
        above = 2 * (cells - (capacity - lengths) // cell)
        below = 2 * (lengths // cell)
        worth = np.where(2 * lengths > capacity, above, below)
        worth[2 * lengths == capacity] = cells
        best = max(best, -(-int(worth @ counts) // (2 * cells)))
    return best


def _cells(histogram: Histogram, capacity: int) -> list[int]:
    """Cell sizes worth trying: equal parts of the capacity, and lengths that are common."""
    ends = capacity // np.arange(2, _MOST_PARTS + 2)
    before = np.cumsum(histogram.counts) - histogram.counts
    quantile = before * _MOST_PARTS // histogram.num_samples
    common = histogram.lengths[np.diff(quantile, prepend=-1) != 0]
    cells = np.unique(np.concatenate([ends, ends + 1, common, capacity - common]))
    return [cell for cell in cells.tolist() if 1 <= 2 * cell <= capacity]


def lower_bound(histogram: Histogram, capacity: int) -> tuple[int, str]:
    """The best of these bounds and its name: ``'volume'`` (⌈Σ/C⌉), ``'L2'`` or ``'DFF'``.

    `packidx.pack.strategies.lp.column_generation` has a better one that takes seconds.
    """
    bounds = {
        "volume": volume_bound(histogram, capacity),
        "L2": martello_toth_l2(histogram, capacity),
        "DFF": dual_feasible(histogram, capacity),
    }
    name = max(bounds, key=lambda bound: bounds[bound])  # the first, simpler one wins a tie
    return bounds[name], name
