"""Best-fit-decreasing on counts: as many packs as the item-level rule, at a histogram's cost.

Item-level best fit decreasing puts each sample, longest first, into the fullest pack it fits.
Equal samples behave alike: the first goes to a pack of the smallest sufficient room r, which then
is the fullest that still fits the next, until the pack is full; so ``r // length`` of them fill one
pack before the next pack of room r is touched.
"""

from __future__ import annotations

from packidx.pack.histogram import Histogram
from packidx.pack.runs import PackRuns
from packidx.pack.strategies.open_packs import OpenPacks


def best_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    for length, count in histogram.pairs():
        packs.fill_best(length, count)
    return packs.plan()
