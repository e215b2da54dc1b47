"""Token sequences: where each medium's tokens come to stand, and which tokens are trained on.

The counts of a plan and the tensors of a sample are both made of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.processor.counts import MediaColumns
from packidx.processor.text.borders import TokenBatch
from packidx.processor.text.encoder import TextEncoder
from packidx.processor.text.expand import Expanded


@dataclass(frozen=True, slots=True)
class FeatureRuns:
    """The runs of feature tokens in a batch of n texts, r in all."""

    tokens: Int64s
    """``[r]`` positions in the batch's ids, where a run is one token."""
    repeats: Int64s
    """``[r]`` how often it is repeated."""
    at: Int64s
    """``[r]`` first token of the run in its own sample, all runs before it written out."""
    extra: Int64s
    """``[n]`` tokens that writing out the runs adds."""
    mismatched: frozenset[int]
    """Texts that have more or fewer feature tokens than their media."""

    def repeats_of(self, batch: TokenBatch) -> Int64s:
        """``[total]`` how often each of the batch's tokens is written."""
        repeats = np.ones(len(batch.ids), np.int64)
        repeats[self.tokens] = self.repeats
        return repeats


def locate_runs(
    batch: TokenBatch, expanded: Sequence[Expanded], feature_ids: Sequence[int]
) -> FeatureRuns:
    """Find the feature tokens of `expanded` texts that were tokenized to `batch`."""
    tokens = np.flatnonzero(np.isin(batch.ids, feature_ids)) if feature_ids else batch.ids[:0]
    tokens = tokens.astype(np.int64)
    bounds = np.searchsorted(tokens, batch.offsets)
    expected = [[num for medium in item.runs for num in medium] for item in expanded]
    sizes = np.array([len(runs) for runs in expected], np.int64)
    wrong = frozenset(np.flatnonzero(np.diff(bounds) != sizes).tolist())
    if wrong:
        kept = [i for i in range(len(expanded)) if i not in wrong]
        inside = [tokens[bounds[i] : bounds[i + 1]] for i in kept]
        tokens = np.concatenate([*inside, tokens[:0]])
        sizes[list(wrong)] = 0
        expected = [expected[i] for i in kept]
    repeats = np.array([num for runs in expected for num in runs], np.int64)
    firsts = np.cumsum(sizes) - sizes
    added = np.concatenate([[0], np.cumsum(repeats - 1)])
    extra = added[firsts + sizes] - added[firsts]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    at = tokens - batch.offsets[owners] + added[:-1] - added[firsts][owners]
    return FeatureRuns(tokens, repeats, at, extra, wrong)


def trained_tokens(
    batch: TokenBatch, text: TextEncoder, expanded: Sequence[Expanded], runs: FeatureRuns
) -> NDArray[np.bool_]:
    """``[total]`` which of the batch's tokens contribute to the loss.

    Those that lie wholly in a label span, but no feature token and no sample's first token, which
    nothing predicts.
    """
    starts, ends = text.borders(
        batch, [item.text for item in expanded], [item.label_spans for item in expanded]
    )
    good = starts < ends
    steps = np.zeros(len(batch.ids) + 1, np.int64)
    np.add.at(steps, starts[good], 1)
    np.add.at(steps, ends[good], -1)
    mask: NDArray[np.bool_] = np.cumsum(steps)[:-1] > 0
    mask[runs.tokens] = False
    mask[batch.offsets[:-1][batch.lengths > 0]] = False
    return mask


def place_media(
    media: MediaColumns, rows: Int64s, expanded: Sequence[Expanded], runs: FeatureRuns
) -> Int64s:
    """Put where the texts' media are into their columns.

    Returns:
        ``[len(expanded)]`` tokens of each text's media, what stands between their runs included.
    """
    offsets = media.offsets[rows].tolist()
    targets: list[int] = []
    owners: list[int] = []
    sizes: list[int] = []
    for number, item in enumerate(expanded):
        if item.runs and number not in runs.mismatched:
            order = range(len(item.runs)) if item.order is None else item.order
            targets += [offsets[number] + at for at in order]
            owners += [number] * len(item.runs)
            sizes += map(len, item.runs)
    last = np.cumsum(np.array(sizes, np.int64)) - 1
    first = last + 1 - np.array(sizes, np.int64)
    media.at, media.tokens = media.at.copy(), media.tokens.copy()
    media.at[targets] = runs.at[first]
    media.tokens[targets] = runs.at[last] + runs.repeats[last] - runs.at[first]
    own = np.zeros(len(expanded), np.int64)
    np.add.at(own, owners, media.tokens[targets])
    return own
