"""Columns of counts: of media, of texts, and of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Bools, Int64s
from packidx.errors import BadRecord
from packidx.processor.families import Expansion, MediaCounts
from packidx.processor.kinds import KINDS
from packidx.records.conversation import Conversation

EXACT, PRECOMPUTED, HEURISTIC = range(3)
TOKENS_PER_MEDIUM = 500
"""Guesses where nothing better is known, as trainers make them."""
UNKNOWN = -1


@dataclass(slots=True)
class MediaColumns:
    """m media of n samples, in order of appearance; `UNKNOWN` where a number is not known."""

    offsets: Int64s
    """``[n + 1]``; sample i's media are ``offsets[i]:offsets[i + 1]``."""
    kind: Int64s
    """``[m]`` number in `KINDS`."""
    tokens: Int64s
    """``[m]`` from the first to the last token that carries its features."""
    grid: Int64s
    """``[m, 3]`` (t, h, w) in patches."""
    patches: Int64s
    """``[m]``"""
    cost: Int64s
    """``[m]`` sum of patches² per attention span."""
    at: Int64s
    """``[m]`` its first token in the sample."""
    method: Int64s
    """``[m]`` number in `METHODS`."""
    expansions: list[Expansion | None]
    errors: dict[int, BadRecord] = field(default_factory=dict)
    """By the medium's number."""

    @classmethod
    def unknown(cls, sizes: Sequence[int]) -> MediaColumns:
        """Columns of samples with so many media each, of which nothing is known yet."""
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        num = int(offsets[-1])
        grid = np.full((num, 3), UNKNOWN, np.int64)
        kind, tokens, patches, cost, at, method = np.full((6, num), UNKNOWN, np.int64)
        return cls(offsets, kind, tokens, grid, patches, cost, at, method, [None] * num)

    @property
    def owners(self) -> Int64s:
        """``[m]`` the sample of each medium."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def mixed(self) -> set[int]:
        """Return the samples with media of several kinds."""
        held = np.zeros((len(self.offsets) - 1, len(KINDS)), bool)
        held[self.owners, self.kind] = True
        return set(np.flatnonzero(held.sum(axis=1) > 1).tolist())


class Spans(NamedTuple):
    """Tokens ``start .. stop - 1`` of samples that contribute to the loss, int64 ``[k]``, in order
    of (sample, start)."""

    sample: Int64s
    start: Int64s
    stop: Int64s

    @classmethod
    def of(cls, mask: Bools, sample: Int64s) -> Spans:
        """The runs of True in a mask of tokens.

        Args:
            mask: bool [t], of samples one after the other; of none is the first token True.
            sample: int64 [t], whose each token is; places count from the mask's first token.
        """
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
        start, stop = edges[::2], edges[1::2]
        return cls(sample[start], start, stop)

    @classmethod
    def none(cls) -> Spans:
        return cls(*[np.empty(0, np.int64)] * 3)


def has_spans(length: Int64s, label_tokens: Int64s) -> Bools:
    """Return where the lengths table has the spans of label tokens, bool [n].

    If none or all of a sample's tokens are label tokens, their number says it.
    """
    return (label_tokens > 0) & (label_tokens < length - 1)


@dataclass(slots=True)
class Counts:
    """n samples' counts, int64 ``[n]`` each; `UNKNOWN` where a number is not known."""

    text_tokens: Int64s
    image_tokens: Int64s
    video_tokens: Int64s
    audio_tokens: Int64s
    length: Int64s
    label_tokens: Int64s
    vision_patches: Int64s
    vision_cost: Int64s
    method: Int64s
    """Number in `METHODS`."""
    media: MediaColumns
    errors: dict[int, BadRecord]
    """Why a sample has no counts, by its number."""
    spans: Spans = field(default_factory=Spans.none)
    """Spans of the samples for which `has_spans` is True, as far as they are known."""


def stated(conversations: Sequence[Conversation]) -> MediaColumns:
    """Columns of all media as far as the records state them."""
    columns = MediaColumns.unknown([len(c.media) for c in conversations])
    tokens = [medium.tokens for c in conversations for medium in c.media]
    columns.tokens[:] = [TOKENS_PER_MEDIUM if n is None else n for n in tokens]
    columns.method[:] = [HEURISTIC if n is None else PRECOMPUTED for n in tokens]
    columns.kind[:] = [KINDS.index(medium.kind) for c in conversations for medium in c.media]
    return columns


def fill(columns: MediaColumns, chosen: Sequence[int], counts: MediaCounts, method: int) -> None:
    """Put a family's counts where `chosen` says."""
    columns.tokens[chosen] = counts.tokens
    columns.method[chosen] = method
    if counts.grids.any():
        columns.grid[chosen] = counts.grids
        columns.patches[chosen] = counts.patches
        columns.cost[chosen] = counts.cost
    if counts.expansions is not None:
        for number, expansion in zip(chosen, counts.expansions, strict=True):
            columns.expansions[number] = expansion
    for number, error in counts.errors.items():
        columns.errors[chosen[number]] = error


@dataclass(slots=True)
class Texts:
    """The text side of n samples."""

    tokens: Int64s
    method: Int64s
    labels: Int64s
    errors: dict[int, BadRecord] = field(default_factory=dict)
    spans: Spans = field(default_factory=Spans.none)
    """Of label tokens."""


def combine(texts: Texts, media: MediaColumns) -> Counts:
    """The counts of n samples, each by the weakest of the methods of its parts."""
    num, owners = len(texts.tokens), media.owners
    errors = dict(texts.errors)
    for number in sorted(media.errors, reverse=True):  # the first one's stays
        errors[int(owners[number])] = media.errors[number]
    method = texts.method.copy()
    np.maximum.at(method, owners, media.method)
    media.at[method[owners] != EXACT] = UNKNOWN

    def total(values: Int64s, chosen: NDArray[np.bool_]) -> Int64s:
        sums: Int64s = np.zeros(num, np.int64)
        np.add.at(sums, owners[chosen], values[chosen])
        return sums

    sums = [total(media.tokens, media.kind == kind) for kind in range(len(KINDS))]
    known = media.patches != UNKNOWN
    unknown = total(np.ones_like(owners), ~known) > 0
    length = texts.tokens + sums[0] + sums[1] + sums[2]
    spanned = has_spans(length, texts.labels) & (method == EXACT)  # else places are guesses
    spans = Spans(*(values[spanned[texts.spans.sample]] for values in texts.spans))
    return Counts(
        text_tokens=texts.tokens,
        image_tokens=sums[0],
        video_tokens=sums[1],
        audio_tokens=sums[2],
        length=length,
        label_tokens=texts.labels,
        vision_patches=np.where(unknown, UNKNOWN, total(media.patches, known)),
        vision_cost=np.where(unknown, UNKNOWN, total(media.cost, known)),
        method=method,
        media=media,
        errors=errors,
        spans=spans,
    )
