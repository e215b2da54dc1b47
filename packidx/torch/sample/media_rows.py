"""Media tensors: whose rows are whose; how they are split, cut, made up and compared.

The first dimension of such a tensor counts media, tiles (or frames) or patches, in the tensors of a
pack also its samples with media. Which of them is seen by the number of its rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.sample.encoded import ADVICE, PlanMismatch
from packidx.torch.sample.join_rules import ROWS, Rules, rule_of

Planned = Sequence[Mapping[str, Any]]
"""`Sample.media`: ``kind``, ``t``, ``h``, ``w`` (0 or None: unknown), ``at``, the first token."""

Grid = tuple[int, int, int]
"""Patches of one medium: time or tiles, rows, columns."""

TYPES = {"image": 1, "video": 2, "audio": 3}
"""Values of transformers' ``mm_token_type_ids``."""

_AUDIO: tuple[str, ...] = ("audio_", "input_features", "feature_attention_mask", "input_values")
_AUDIO += ("chunk_sample_lengths",)
"""How names of an audio's tensors begin, in transformers' models."""


class Unsplit(MismatchError):
    """Which media, or which rows, belong to which part cannot be told.

    Attributes:
        border: number of the border between parts that falls into a medium, if that is why.
    """

    def __init__(self, why: str, border: int | None = None) -> None:
        super().__init__(why)
        self.border = border


def by_kind(media: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of images, those of videos and those of audio, as far as there are any."""
    tensors: dict[str, dict[str, Tensor]] = {kind: {} for kind in TYPES}
    for key, value in media.items():
        tensors[_kind_of(key)][key] = value
    return {kind: given for kind, given in tensors.items() if given}


def _kind_of(key: str) -> str:
    if "video" in key or key == "second_per_grid_ts":
        return "video"
    return "audio" if key.startswith(_AUDIO) else "image"


def grid_of(medium: Mapping[str, Any]) -> Grid | None:
    """The planned (t, h, w), None where it is unknown."""
    sides = (medium["t"] or 0, medium["h"] or 0, medium["w"] or 0)
    return sides if all(side > 0 for side in sides) else None


def grids_in(media: Mapping[str, Tensor], kind: str) -> list[Grid] | None:
    """(t, h, w) of each medium of a kind; None where no tensor says it."""
    grid = media.get(f"{kind}_grid_thw")
    return None if grid is None else [(t, h, w) for t, h, w in grid.tolist()]


def _rows_of_each(grids: Sequence[Grid]) -> dict[str, list[int]]:
    """How many rows each medium takes, by what the rows of a tensor count."""
    return {
        "patches": [math.prod(grid) for grid in grids],
        "tiles": [t for t, _, _ in grids],
        "media": [1] * len(grids),
    }


@dataclass(frozen=True, slots=True)
class MediaTensor:
    """One of the tensors that come with media.

    Attributes:
        counts: what its rows are: ``'media'``, ``'tiles'`` (or frames: Σ t) or ``'patches'``.
        rest: its dimensions after the first.
        grids: whether its values are the grids (t, h, w) themselves.
    """

    counts: str
    dtype: torch.dtype
    rest: tuple[int, ...]
    grids: bool

    def blank(self, grids: Sequence[Grid]) -> Tensor:
        """Zeros in the shape of media of these grids; the grids themselves where it holds them."""
        if not self.grids:
            rows = sum(_rows_of_each(grids)[self.counts])
            return torch.zeros(rows, *self.rest, dtype=self.dtype)
        if self.counts == "tiles":
            grids = _each_frame(grids)
        return torch.tensor(grids, dtype=self.dtype)


def media_tensor(key: str, value: Tensor, grids: Sequence[Grid]) -> MediaTensor | None:
    """What `value`'s rows count, or None where that, or its values, cannot be told."""
    is_grid = key.endswith("_grid_thw")
    rows = {name: sum(each) for name, each in _rows_of_each(grids).items()}
    # In this order: images have t = 1, and then tiles and media are the same number.
    order = ("media", "tiles") if is_grid or value.ndim == 1 else tuple(rows)
    counts = next((name for name in order if rows[name] == value.shape[0]), None)
    if counts is None or not (is_grid or value.is_floating_point()):
        return None
    if value.ndim > 4:  # [media, tiles, channels, height, width]: tiles are not in the rows
        return None
    return MediaTensor(counts, value.dtype, tuple(value.shape[1:]), is_grid)


def _each_frame(grids: Sequence[Grid]) -> list[Grid]:
    """Each video's grid as one row per frame, as some models want it."""
    return [(1, h, w) for t, h, w in grids for _ in range(t)]


def check_media(media: Mapping[str, Tensor], planned: Planned | None) -> None:
    """Compare the grids among `media` with the planned ones, as far as both are known.

    Raises:
        PlanMismatch: they differ.
    """
    if planned is None:
        return
    for kind in TYPES:
        grids = grids_in(media, kind)
        stated = [grid_of(medium) for medium in planned if medium["kind"] == kind]
        wanted = [grid for grid in stated if grid is not None]
        if grids is None or len(wanted) < len(stated) or grids == wanted:
            continue
        if kind != "video" or grids != _each_frame(wanted):
            raise PlanMismatch(
                f"encoded to {kind}s of {_words(grids)} patches (t x h x w) but planned as"
                f" {_words(wanted)}; {ADVICE}"
            )


def _words(grids: Sequence[Grid]) -> str:
    return ", ".join("x".join(map(str, grid)) for grid in grids) or "none"


def cut_media(
    kind: str,
    tensors: Mapping[str, Tensor],
    is_medium: Tensor,
    start: int,
    stop: int,
    rules: Rules | None = None,
) -> dict[str, Tensor]:
    """The rows of the media that stand within tokens [start, stop) of a sample.

    Args:
        is_medium: bool [T], True where a token of the sample stands for this kind.
        rules: how the encoder's own tensors are joined.

    Raises:
        PlanMismatch: a medium would be cut.
        MismatchError: where media end is unknown, or which rows are theirs.
    """
    if (grids := grids_in(tensors, kind)) is None:
        raise MismatchError(
            f"the plan cuts this sample and encode returned no {kind}_grid_thw, so where its"
            " media end is unknown: plan with --on-long drop"
        )
    parts = is_medium[:start], is_medium[start:stop], is_medium[stop:]
    try:
        media = _media_by_patches(grids, [int(part.sum()) for part in parts])
        return _split_rows(kind, tensors, media, rules)[1] if media[1] else {}
    except Unsplit as error:
        if error.border is not None:
            at = start if error.border == 0 else stop
            raise PlanMismatch(
                f"the plan cuts this sample at token {at}, inside one of its {kind}s; {ADVICE}"
            ) from None
        raise MismatchError(
            f"the plan cuts this sample and {error}; plan with --on-long drop"
        ) from None


def split_by_sample(
    kind: str,
    tensors: Mapping[str, Tensor],
    is_medium: Sequence[Tensor],
    rules: Rules | None = None,
) -> list[dict[str, Tensor]]:
    """The rows of each sample of a pack, and of its other segments.

    Args:
        is_medium: of each segment, bool [length], True where a token stands for this kind.
        rules: how the encoder's own tensors are joined.

    Raises:
        Unsplit: they cannot be told apart.
    """
    tokens = [int(marked.sum()) for marked in is_medium]
    grids = grids_in(tensors, kind)
    if grids is not None:
        media = _media_by_patches(grids, tokens)
    else:
        media = _media_without_grids(tensors, is_medium, tokens)
    with_media = [int(number > 0) for number in media]
    return _split_rows(kind, tensors, media, rules, with_media)


def _media_by_patches(grids: Sequence[Grid], tokens: Sequence[int]) -> list[int]:
    """How many media each part has that has so many of their tokens.

    A medium has as many tokens as patches, divided by the same square for all.
    """
    patches = _rows_of_each(grids)["patches"]
    total, all_patches = sum(tokens), max(sum(patches), 1)
    ends = [0, *(end * total // all_patches for end in accumulate(patches))]
    before = [0]
    for border, seen in enumerate(accumulate(tokens)):
        number = bisect_right(ends, seen) - 1 if seen else 0
        if ends[number] != seen:
            raise Unsplit("a segment ends inside one", border)
        before.append(number)
    return [stop - start for start, stop in pairwise(before)]


def _media_without_grids(
    tensors: Mapping[str, Tensor], is_medium: Sequence[Tensor], tokens: Sequence[int]
) -> list[int]:
    """How many media each segment has, by whichever way of telling applies."""
    with_media = [int(number > 0) for number in tokens]
    named = tensors.get("batch_num_images")
    if named is not None and len(named) == sum(with_media):
        numbers = iter(named.tolist())
        return [next(numbers) if number else 0 for number in tokens]
    pixels = next((value for key, value in tensors.items() if "pixel" in key), None)
    if pixels is None:
        raise Unsplit("there are no pixel_values")
    runs = [_runs(marked) for marked in is_medium]
    for media in (runs, with_media):
        if sum(media) == len(pixels):
            return media
    each, rest = divmod(sum(tokens), len(pixels))
    if pixels.ndim == 4 and not rest and each and not any(number % each for number in tokens):
        return [number // each for number in tokens]
    raise Unsplit(f"there are {len(pixels)} of them and {sum(tokens)} tokens for them")


def _runs(marked: Tensor) -> int:
    """Number of runs of True in bool [length]."""
    before = torch.nn.functional.pad(marked[:-1], (1, 0)) if len(marked) else marked
    return int((marked & ~before).sum())


def _split_rows(
    kind: str,
    tensors: Mapping[str, Tensor],
    media: Sequence[int],
    rules: Rules | None,
    with_media: Sequence[int] | None = None,
) -> list[dict[str, Tensor]]:
    """The tensors of one kind in as many parts as `media` has numbers of media.

    Args:
        with_media: rows of a tensor that has one for each part with media, if there may be any.
    """
    bounds = list(pairwise([0, *accumulate(media)]))
    grids = grids_in(tensors, kind)
    each = {"media": [1] * sum(media)} if grids is None else _rows_of_each(grids)
    counted = [[sum(rows[start:stop]) for start, stop in bounds] for rows in each.values()]
    candidates = counted if with_media is None else [list(with_media), *counted]
    sizes = {sum(rows): rows for rows in candidates}
    parts: list[dict[str, Tensor]] = [{} for _ in media]
    for key, value in tensors.items():
        if rule_of(key, value, tensors, rules) != ROWS:
            raise Unsplit(f"{key} is not made of rows of its media alone")
        if value.shape[0] not in sizes:
            size = "" if grids is None else f" of {sum(each['patches'])} patches"
            raise Unsplit(f"{key} has {value.shape[0]} rows for {sum(media)} media{size}")
        for part, rows in zip(parts, torch.split(value, sizes[value.shape[0]]), strict=True):
            if len(rows):
                part[key] = rows
    return parts
