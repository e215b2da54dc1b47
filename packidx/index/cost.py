"""The cost of a pack in each phase, from a plan's weights and its packs' columns.

Tokens are not time: matrix products grow with the tokens, attention with the sum of squared
lengths, and a vision tower runs in a phase of its own, in which ranks wait for each other once
more. The weights come from `packidx.plan.cost_model` and stand in the manifest, so that
every reader of an index can compute what its packs cost. Elementwise float64 alone: the same bits
on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.format.index import CostModel

COLUMNS = ("length", "attention_cost", "vision_patches", "vision_cost")


def pack_cost(weights: CostModel, columns: Mapping[str, Any]) -> tuple[Float64s, Float64s]:
    """Cost of each pack's LLM phase and ViT phase, float64 [n] each, in the weights' unit.

    Args:
        weights: as the options of a manifest have them.
        columns: int64 [n] arrays of the packs table by name: ``length`` (Σl over the pack's
            samples), ``attention_cost`` (Σl²), ``vision_patches`` (Σp), ``vision_cost`` (Σp² over
            attention spans). A column that is absent or None counts 0.

    A window of w tokens is charged for l²/2 pairs of tokens up to l = w, and for l·w - w²/2 beyond.
    A pack knows only its sums, so every sample counts as one of the mean length that a token sees,
    Σl²/Σl. Pairs per token are a concave function of l, so by Jensen's inequality this is never too
    little; it is exact where no sample, or none but equal ones, exceeds the window.
    """
    known = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    size = max((len(values) for values in known.values()), default=0)
    length, squares, patches, spans = (
        np.asarray(known.get(name, np.zeros(size)), np.float64) for name in COLUMNS
    )
    llm = weights.llm_linear * length + weights.llm_attention * squares
    if weights.llm_windowed:
        window, mean = weights.llm_window, squares / np.maximum(length, 1.0)
        beyond = length * (2.0 * window - window * window / np.maximum(mean, window))
        llm = llm + weights.llm_windowed * np.where(mean > window, beyond, squares)
    vit = weights.vit_linear * patches + weights.vit_attention * spans
    return llm, vit


def fixed_point(cost: Float64s, largest: float, bits: int) -> Int64s:
    """Costs as integers, `largest` as 2^bits: sums of 2^32 of 30 bits are exact, in any order."""
    return np.asarray(cost * ((1 << bits) / largest) if largest else cost, np.int64)
