"""Lower bounds on the number of packs, in integers: what no plan can beat.

A plan that keeps several limits (tokens, images, vision patches, samples) keeps each of them, so
every bound of one holds for all. It also keeps any sum of the limits with weights ≥ 0: the
*surrogate*, one size per item and one capacity, whose bounds are bounds of the joint problem too
(Caprara and Toth, 2001, "Lower bounds and algorithms for the 2-dimensional vector packing problem";
Spieksma, 1994). By volume a surrogate never beats its best dimension, of which it is a mean; by L2
it can, where an item is large in the sum only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from packidx.arrays import Int64s
from packidx.pack.counts import Histogram

_MOST_PARTS = 40  # of the capacity, that a dual-feasible function counts in
# Two limits are added in these proportions, each relative to its own size.
_PROPORTIONS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4))
# A surrogate's capacity: fine enough that rounding sizes down loses nothing to speak of, coarse
# enough that a histogram of it is short.
_CAPACITY = 1 << 15
# A limit that the items need less than this share of the scarcest one is in no surrogate.
_SCARCE = 0.25


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

    `packidx.pack.strategies.lp` has a better one that takes seconds.
    """
    bounds = {
        "volume": volume_bound(histogram, capacity),
        "L2": martello_toth_l2(histogram, capacity),
        "DFF": dual_feasible(histogram, capacity),
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
        The bound, and its name: ``'tokens volume'``, ``'vision_patches L2'``, ``'joint L2'``.

    Raises:
        ValueError: an item exceeds a limit, or `names` does not fit.
    """
    if len(names) != sizes.shape[1] or len(limits) != sizes.shape[1]:
        raise ValueError(f"{sizes.shape[1]} dimensions, {len(limits)} limits, {len(names)} names")
    if len(sizes) and ((sizes > limits).any() or (sizes < 0).any()):
        raise ValueError("every size must lie in 0..limit")
    best = (0, f"{names[0]} volume")
    for name, values, capacity in _relaxations(sizes, limits, names):
        packs, how = lower_bound(Histogram.of(values[values > 0]), capacity)
        if packs > best[0]:  # the first, simpler one wins a tie
            best = packs, f"{name} {how}"
    return best


def volume_packs(sizes: Int64s, limits: Int64s) -> int:
    """max over dimensions of ⌈Σ size / limit⌉: the simplest joint bound, 0 for no items."""
    totals = zip(sizes.sum(0).tolist(), limits.tolist(), strict=True)
    return max((-(-total // limit) for total, limit in totals if total), default=0)


def _relaxations(
    sizes: Int64s, limits: Int64s, names: Sequence[str]
) -> Iterator[tuple[str, Int64s, int]]:
    """(name, sizes [n], capacity) of one-dimensional problems that every joint plan solves."""
    used = [k for k in range(len(limits)) if sizes[:, k].any()]
    for k in used:
        yield names[k], sizes[:, k], int(limits[k])
    need = {k: int(sizes[:, k].sum()) / int(limits[k]) for k in used}
    most = max(need.values(), default=0.0)
    scarce = [k for k in used if need[k] >= _SCARCE * most]
    for pair in combinations(scarce, 2):
        for proportion in _PROPORTIONS:
            yield ("joint", *_surrogate(sizes, limits, pair, proportion))
    if len(scarce) > 2:
        yield ("joint", *_surrogate(sizes, limits, tuple(scarce), (1,) * len(scarce)))


def _surrogate(
    sizes: Int64s, limits: Int64s, dimensions: tuple[int, ...], proportion: tuple[int, ...]
) -> tuple[Int64s, int]:
    """The weighted sum of some dimensions and of their limits, in integers, rounded down.

    Any weights are valid: they need not be in exact proportion. If Σ size ≤ capacity in a pack,
    then Σ ⌊size / unit⌋ ≤ ⌊capacity / unit⌋.
    """
    columns = list(dimensions)
    largest = max(int(limits[k]) for k in columns)
    weights = [p * 16 * largest // int(limits[k]) for k, p in zip(columns, proportion, strict=True)]
    capacity = sum(w * int(limits[k]) for k, w in zip(columns, weights, strict=True))
    unit = max(1, capacity // _CAPACITY)
    return sizes[:, columns] @ np.array(weights, np.int64) // unit, capacity // unit
