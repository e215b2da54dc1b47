"""The token sequence of a rendered conversation: its media's tokens, and the trained ones.

Each placeholder becomes what the processor puts there, and every run of feature tokens is written
once. The counts of a plan and the tensors of a sample are both made of where these come to stand.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.processor.chat_template.chat_template import Rendered
from packidx.processor.chat_template.marks import Span
from packidx.processor.counts import MediaColumns
from packidx.processor.families import Expansion
from packidx.processor.text.encoder import TextEncoder, TokenBatch


@dataclass(frozen=True, slots=True)
class Ending:
    """The token that ends a document."""

    token: int
    """Id of the end-of-text token; it is there once, even if the template writes it, too."""
    is_trained: bool
    """True if it contributes to the loss."""


@dataclass(slots=True)  # not frozen: there is one per record, and frozen ones are made slowly
class Expanded:
    """A rendered conversation with its media's text, every run of feature tokens written once."""

    text: str
    """The text that is tokenized."""
    label_spans: tuple[Span, ...]
    """Character ranges ``[start, end)`` that are trained on; feature tokens in them are not."""
    runs: tuple[tuple[int, ...], ...] | None
    """Per medium, as they stand in the text, how often each of its feature tokens is repeated; None
    if the media are not written out."""
    order: tuple[int, ...] = ()
    """The number of each of these media in the conversation."""
    ending: Ending | None = None
    """The end of a document, which gets the tokenizer's special tokens, too; else None."""


def expand_media(
    rendered: Rendered,
    kinds: Sequence[str],
    tokens: Sequence[int],
    expansions: Sequence[Expansion | None],
    placeholders: Mapping[str, str],
) -> Expanded:
    """Put the media's text in place of their placeholders.

    Args:
        rendered: the conversation as the template writes it.
        kinds, tokens, expansions: per medium; without an expansion its placeholder is the feature
            token, repeated `tokens` times.
        placeholders: kind of medium → what the template wrote for it.
    """
    order = sorted(range(len(rendered.media)), key=rendered.media.__getitem__)
    text, at = rendered.text, 0
    parts: list[str] = []
    cuts, added = list[int](), [0]  # where replaced placeholders end, and what is longer by then
    runs: list[tuple[int, ...]] = []
    for number in order:
        expansion = expansions[number]
        runs.append((tokens[number],) if expansion is None else expansion.runs)
        if expansion is not None:
            start, size = rendered.media[number], len(placeholders[kinds[number]])
            parts += (text[at:start], expansion.text)
            at = start + size
            cuts.append(at)
            added.append(added[-1] + len(expansion.text) - size)
    spans = rendered.label_spans
    if cuts:
        # What replaces a medium inside a span belongs to it.
        text = "".join([*parts, text[at:]])
        spans = tuple(
            [(_move_border(a, cuts, added), _move_border(b, cuts, added)) for a, b in spans]
        )
    return Expanded(text, spans, tuple(runs), tuple(order))


def _move_border(border: int, cuts: Sequence[int], added: Sequence[int]) -> int:
    return border + added[bisect.bisect_right(cuts, border)]


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


def locate_runs(
    batch: TokenBatch, expanded: Sequence[Expanded], feature_ids: Sequence[int]
) -> FeatureRuns:
    """Find the feature tokens of `expanded` texts that were tokenized to `batch`."""
    tokens = np.flatnonzero(np.isin(batch.ids, feature_ids)) if feature_ids else batch.ids[:0]
    tokens = tokens.astype(np.int64)
    bounds = np.searchsorted(tokens, batch.offsets)
    expected = [[num for medium in item.runs or () for num in medium] for item in expanded]
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


def mask_trained_tokens(
    batch: TokenBatch, text: TextEncoder, expanded: Sequence[Expanded], runs: FeatureRuns
) -> NDArray[np.bool_]:
    """``[total]`` which of the batch's tokens contribute to the loss.

    Those in a label span (`TextEncoder.borders`) and the special tokens around a document, but no
    feature token and no sample's first token, which nothing predicts.
    """
    texts = [item.text for item in expanded]
    starts, ends = text.borders(batch, texts, [item.label_spans for item in expanded])
    good = starts < ends
    steps = np.zeros(len(batch.ids) + 1, np.int64)
    np.add.at(steps, starts[good], 1)
    np.add.at(steps, ends[good], -1)
    mask: NDArray[np.bool_] = np.cumsum(steps)[:-1] > 0
    for number, item in enumerate(expanded):
        if item.ending is not None:
            begin, end = batch.offsets[number], batch.offsets[number + 1]
            mask[begin : begin + batch.prefix[number]] = bool(item.label_spans)
            mask[end - batch.suffix[number] : end] = item.ending.is_trained
    mask[runs.tokens] = False
    mask[batch.offsets[:-1][batch.lengths > 0]] = False
    return mask


def locate_tokens(batch: TokenBatch, runs: FeatureRuns, tokens: Int64s) -> Int64s:
    """Return where `tokens` of the batch, none of them a run's, stand in their own samples, all
    runs written out."""
    added = np.concatenate([[0], np.cumsum(runs.repeats - 1)])
    own = batch.offsets[np.searchsorted(batch.offsets, tokens, "right") - 1]
    before, first = (np.searchsorted(runs.tokens, values) for values in (tokens, own))
    stand: Int64s = tokens - own + added[before] - added[first]
    return stand


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
            targets += [offsets[number] + at for at in item.order]
            owners += [number] * len(item.runs)
            sizes += map(len, item.runs)
    last = np.cumsum(np.array(sizes, np.int64)) - 1
    first = last + 1 - np.array(sizes, np.int64)
    media.at[targets] = runs.at[first]
    media.tokens[targets] = runs.at[last] + runs.repeats[last] - runs.at[first]
    own = np.zeros(len(expanded), np.int64)
    np.add.at(own, owners, media.tokens[targets])
    return own
