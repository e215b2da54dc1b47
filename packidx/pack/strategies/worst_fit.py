"""Worst-fit-decreasing on counts: the rule that NeMo Automodel calls a greedy knapsack.

Its ``greedy_knapsack`` (nemo_automodel/components/datasets/llm/neat_packing.py, 2025) keeps the
packs in a heap by their content and gives each sample, longest first, to the emptiest one; where
even that lacks the room, a new pack is opened. As packs are opened only then, the emptiest pack
of a new length's turn is rarely emptier than that length, and packs end up filled with equals.
"""

from __future__ import annotations

from packidx.pack.histogram import Histogram
from packidx.pack.runs import PackRuns
from packidx.pack.strategies.open_packs import OpenPacks


def worst_fit_decreasing(histogram: Histogram, capacity: int) -> PackRuns:
    """Plan `histogram` into packs of `capacity` tokens, each sample into the emptiest open pack.

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
