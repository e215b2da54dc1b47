"""Lower bounds where several limits hold at once: on tokens, images, vision patches, samples.

A plan that keeps all limits keeps each of them, so every bound of one dimension holds. It also
keeps any sum of the limits with weights ≥ 0: the *surrogate*, one size per item and one capacity,
whose bounds are bounds of the joint problem too (Caprara and Toth, 2001, "Lower bounds and
algorithms for the 2-dimensional vector packing problem"; Spieksma, 1994). By volume a surrogate
never beats its best dimension, of which it is a mean; by L2 it can, where an item is large in the
sum only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from packidx.arrays import Int64s
from packidx.pack.bounds import lower_bound
from packidx.pack.histogram import Histogram

# Two limits are added in these proportions, each relative to its own size.
_PROPORTIONS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4))
# A surrogate's capacity: fine enough that rounding sizes down loses nothing to speak of, coarse
# enough that a histogram of it is short.
_CAPACITY = 1 << 15
# A limit that the items need less than this share of the scarcest one is in no surrogate.
_SCARCE = 0.25


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
