"""Columns of counts: of media, of texts, and of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

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
    """Errors by the medium's number."""

    @classmethod
    def stated(cls, conversations: Sequence[Conversation]) -> MediaColumns:
        """Return columns of all media as far as the records state them."""
        listed = [medium for c in conversations for medium in c.media]
        num = len(listed)
        offsets = np.cumsum([0, *(len(c.media) for c in conversations)], dtype=np.int64)
        grid = np.full((num, 3), UNKNOWN, np.int64)
        kind, tokens, patches, cost, at, method = np.full((6, num), UNKNOWN, np.int64)
        tokens[:] = [m.stated.get("n_tokens", TOKENS_PER_MEDIUM) for m in listed]
        method[:] = [PRECOMPUTED if "n_tokens" in m.stated else HEURISTIC for m in listed]
        kind[:] = [KINDS.index(m.kind) for m in listed]
        return cls(offsets, kind, tokens, grid, patches, cost, at, method, [None] * num)

    def fill(self, chosen: Sequence[int], counts: MediaCounts) -> None:
        """Put the counts of a processor's rules where `chosen` says."""
        self.tokens[chosen] = counts.tokens
        self.method[chosen] = EXACT
        if counts.grids.any():
            self.grid[chosen] = counts.grids
            self.patches[chosen] = counts.patches
            self.cost[chosen] = counts.cost
        for number, expansion in zip(chosen, counts.expansions or (), strict=False):
            self.expansions[number] = expansion
        self.errors |= {chosen[number]: error for number, error in counts.errors.items()}

    @property
    def owners(self) -> Int64s:
        """``[m]`` the sample of each medium."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Spans(NamedTuple):
    """Tokens ``start .. stop - 1`` of samples that contribute to the loss, int64 ``[k]``, in order
    of (sample, start)."""

    sample: Int64s
    start: Int64s
    stop: Int64s

    @classmethod
    def of(cls, mask: Bools, sample: Int64s) -> Spans:
        """Return the runs of True in a mask of tokens, bool [t], whose first one is False in every
        sample; `sample`, int64 [t], is the number of the sample of each."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
        start, stop = edges[::2], edges[1::2]
        return cls(sample[start], start, stop)


@dataclass(slots=True)
class Counts:
    """n samples' counts, int64 ``[n]`` each; `UNKNOWN` where a number is not known."""

    media: MediaColumns
    text_tokens: Int64s
    label_tokens: Int64s
    method: Int64s
    """Number in `METHODS`."""
    errors: dict[int, BadRecord] = field(default_factory=dict)
    """Reasons why samples have no counts, by the sample's number."""
    image_tokens: Int64s = field(init=False)
    video_tokens: Int64s = field(init=False)
    audio_tokens: Int64s = field(init=False)
    length: Int64s = field(init=False)
    vision_patches: Int64s = field(init=False)
    vision_cost: Int64s = field(init=False)
    spans: Spans = field(init=False)
    """Spans of samples of which some tokens are label tokens, as far as they are known."""

    def summed(self, spans: Sequence[Spans]) -> Counts:
        """Add what the media make; each sample is counted by the weakest of its parts' methods.

        Args:
            spans: of label tokens, of different samples.
        """
        media, owners = self.media, self.media.owners
        for number in sorted(media.errors, reverse=True):  # the first one's stays
            self.errors[int(owners[number])] = media.errors[number]
        np.maximum.at(self.method, owners, media.method)
        media.at[self.method[owners] != EXACT] = UNKNOWN

        def sum_by_sample(values: Int64s) -> Int64s:
            sums = np.zeros_like(self.method)
            np.add.at(sums, owners, values)
            return sums

        kinds = [
            sum_by_sample(np.where(media.kind == n, media.tokens, 0)) for n in range(len(KINDS))
        ]
        self.image_tokens, self.video_tokens, self.audio_tokens = kinds
        self.length = self.text_tokens + sum(kinds)
        is_unknown = sum_by_sample(media.patches == UNKNOWN) > 0
        self.vision_patches = np.where(is_unknown, UNKNOWN, sum_by_sample(media.patches))
        self.vision_cost = np.where(is_unknown, UNKNOWN, sum_by_sample(media.cost))
        # If none or all of a sample's tokens are label tokens, their number says it.
        is_told = (self.label_tokens > 0) & (self.label_tokens < self.length - 1)
        is_told &= self.method == EXACT
        none = Spans(*np.empty((3, 0), np.int64))
        columns = [np.concatenate(parts) for parts in zip(none, *spans, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        order = order[is_told[columns[0][order]]]  # the places of other ones are guesses
        self.spans = Spans(*(values[order] for values in columns))
        return self
