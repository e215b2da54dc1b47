"""Best and worst fit decreasing on counts: the item-level rules' packs, at a histogram's cost."""

from __future__ import annotations

from packidx.pack.counts import Histogram, PackRuns
from packidx.pack.strategies.open_packs import OpenPacks


def best_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the fullest that it fits.

    Equal samples behave alike: the first goes to a pack of the smallest sufficient room r, which
    then is the fullest that still fits the next, until the pack is full; so ``r // length`` of them
    fill one pack before the next pack of room r is touched.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    for length, count in histogram.pairs():
        packs.fill_best(length, count)
    return packs.plan()


def worst_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the emptiest open pack.

    So does ``greedy_knapsack`` of NeMo Automodel (components/datasets/llm/neat_packing.py, 2025),
    and opens a new pack where even that lacks the room. So the emptiest pack of a new length's turn
    is rarely emptier than that length, and packs end up filled with equals.

    Raises:
        ValueError: a length is above the capacity or not positive.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    for length, count in histogram.pairs():
        left = count
        while left and packs.emptiest() >= length:
            left -= packs.deal_round(packs.emptiest(), length, left)
        if left:  # no room >= length is left, so a new pack stays the emptiest until it is full
            packs.fill_new(length, left)
    return packs.plan()
