"""Columns of counts: of media, of texts, and of both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.errors import BadRecord
from packidx.processor.families import Expansion, MediaCounts
from packidx.records.conversation import Conversation

EXACT, PRECOMPUTED, HEURISTIC = range(3)
KINDS = ("image", "video", "audio")
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

    @property
    def owners(self) -> Int64s:
        """``[m]`` the sample of each medium."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


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


def stated(conversations: Sequence[Conversation], tokens: list[int | None]) -> MediaColumns:
    """Columns of all media as far as the records state them."""
    offsets = np.zeros(len(conversations) + 1, np.int64)
    np.cumsum([len(c.media) for c in conversations], out=offsets[1:])
    num = len(tokens)
    unknown = [np.full(num, UNKNOWN, np.int64) for _ in range(4)]
    return MediaColumns(
        offsets=offsets,
        kind=unknown[0],
        tokens=np.array([TOKENS_PER_MEDIUM if n is None else n for n in tokens], np.int64),
        grid=np.full((num, 3), UNKNOWN, np.int64),
        patches=unknown[1],
        cost=unknown[2],
        at=unknown[3],
        method=np.array([HEURISTIC if n is None else PRECOMPUTED for n in tokens], np.int64),
        expansions=[None] * num,
    )


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


def combine(
    texts: Texts, media: MediaColumns, owners: Int64s, errors: dict[int, BadRecord]
) -> Counts:
    """The counts of n samples, each by the weakest of the methods of its parts.

    Args:
        texts: their text.
        media: their m media.
        owners: ``[m]`` the sample that each medium is of.
        errors: why a sample has no count, by its number.
    """
    num = len(texts.tokens)
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
    return Counts(
        text_tokens=texts.tokens,
        image_tokens=sums[0],
        video_tokens=sums[1],
        audio_tokens=sums[2],
        length=texts.tokens + sums[0] + sums[1] + sums[2],
        label_tokens=texts.labels,
        vision_patches=np.where(unknown, UNKNOWN, total(media.patches, known)),
        vision_cost=np.where(unknown, UNKNOWN, total(media.cost, known)),
        method=method,
        media=media,
        errors=errors,
    )
