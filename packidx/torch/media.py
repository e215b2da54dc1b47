"""The media tensors of a sample: compared with the plan, and cut where the plan cuts the sample.

The first dimension of such a tensor counts media, tiles (or frames) or patches. Which of them is
seen by the number of its rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.encoded import ADVICE, Encoded, PlanMismatch
from packidx.torch.joining import ROWS, rule_of

Planned = Sequence[Mapping[str, Any]]
"""`Sample.media`: ``kind``, ``t``, ``h``, ``w`` (0 or None: unknown), ``at``, the first token."""

Grid = tuple[int, int, int]
"""Patches of one medium: time or tiles, rows, columns."""

TYPES = {"image": 1, "video": 2, "audio": 3}
"""Values of transformers' ``mm_token_type_ids``."""

_AUDIO: tuple[str, ...] = ("audio_", "input_features", "feature_attention_mask", "input_values")
_AUDIO += ("chunk_sample_lengths",)
"""How names of an audio's tensors begin, in transformers' models."""


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


def planned_grid(medium: Mapping[str, Any]) -> Grid | None:
    """The planned (t, h, w), None where it is unknown."""
    sides = (medium["t"] or 0, medium["h"] or 0, medium["w"] or 0)
    return sides if all(side > 0 for side in sides) else None


def grids_in(media: Mapping[str, Tensor], kind: str) -> list[Grid] | None:
    """(t, h, w) of each medium of a kind; None where no tensor says it."""
    grid = media.get(f"{kind}_grid_thw")
    return None if grid is None else [(t, h, w) for t, h, w in grid.tolist()]


def _rows_of_each(grids: Sequence[Grid]) -> dict[str, list[int]]:
    """Return how many rows each medium takes, by what the rows of a tensor count."""
    return {
        "patches": [math.prod(grid) for grid in grids],
        "tiles": [t for t, _, _ in grids],
        "media": [1] * len(grids),
    }


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
        stated = [planned_grid(medium) for medium in planned if medium["kind"] == kind]
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


def cut_piece(
    sample: Encoded, start: int, stop: int, media_ids: Mapping[str, int] | None
) -> Encoded:
    """Tokens [start, stop) of `sample` with the media that stand wholly inside.

    Positions start again at the piece.

    Args:
        media_ids: token id of each kind of medium, ``{"image": 151655}``; not needed where the
            sample has ``mm_token_type_ids``.

    Raises:
        PlanMismatch: a medium would be cut.
        MismatchError: where the media stand is unknown.
    """
    piece = sample.between(start, stop)
    piece.labels = piece.labels.clone()
    piece.media = {}
    if piece.mrope_positions is not None:
        piece.mrope_positions = piece.mrope_positions - piece.mrope_positions[:, :1].min()
    for kind, tensors in by_kind(sample.media).items():
        marked = _media_tokens(sample, kind, media_ids)
        piece.media |= _cut_media(kind, tensors, sample, marked, start, stop)
    return piece


def begins_medium(sample: Encoded, at: int, media_ids: Mapping[str, int] | None) -> bool:
    """Return whether the token `at` stands for a medium, as far as `encode` says (`cut_piece`)."""
    return any(bool(_media_tokens(sample, kind, media_ids)[at]) for kind in by_kind(sample.media))


def parts_medium(sample: Encoded, at: int, media_ids: Mapping[str, int] | None) -> bool:
    """Return whether a cut before token `at` may fall between two tokens of one medium."""
    kinds = by_kind(sample.media)
    marked = (_media_tokens(sample, kind, media_ids) for kind in kinds)
    return at < sample.length and any(bool(own[at - 1] and own[at]) for own in marked)


def _media_tokens(sample: Encoded, kind: str, media_ids: Mapping[str, int] | None) -> Tensor:
    """bool [T], True where a token stands for this kind of media."""
    types = sample.sequence.get("mm_token_type_ids")
    if types is not None:
        return types == TYPES[kind]
    if media_ids is not None and kind in media_ids:
        return sample.input_ids == media_ids[kind]
    raise MismatchError(
        "the plan cuts this sample and encode does not say which tokens are media: let it return"
        " mm_token_type_ids or have an attribute media_token_ids, or plan with --on-long drop"
    )


def _cut_media(
    kind: str, tensors: Mapping[str, Tensor], sample: Encoded, marked: Tensor, start: int, stop: int
) -> dict[str, Tensor]:
    """The rows of the media of a kind that stand within tokens [start, stop) of `sample`.

    Args:
        marked: bool [T], True where a token of the sample stands for this kind.
    """
    if (grids := grids_in(tensors, kind)) is None:
        raise MismatchError(
            f"the plan cuts this sample and encode returned no {kind}_grid_thw, so where its"
            " media end is unknown: plan with --on-long drop"
        )
    before, inside = (int(part.sum()) for part in (marked[:start], marked[start:stop]))
    first, last = (
        _media_before(kind, grids, tokens, int(marked.sum()), at)
        for tokens, at in ((before, start), (before + inside, stop))
    )
    if first == last:
        return {}
    kept: dict[str, Tensor] = {}
    rows = [list(accumulate(each, initial=0)) for each in _rows_of_each(grids).values()]
    for key, value in tensors.items():
        ends = next((ends for ends in rows if ends[-1] == value.shape[0]), None)
        if ends is None or rule_of(key, value, tensors, sample.rules) != ROWS:
            raise MismatchError(
                f"the plan cuts this sample and which rows of {key} belong to which {kind} is"
                " unknown; plan with --on-long drop"
            )
        kept[key] = value[ends[first] : ends[last]]
    return kept


def _media_before(kind: str, grids: Sequence[Grid], seen: int, total: int, at: int) -> int:
    """Return how many media stand before token `at`, given `seen` of their `total` tokens do.

    A medium has as many tokens as patches, divided by the same square for all.
    """
    patches = list(accumulate((math.prod(grid) for grid in grids), initial=0))
    ends = [end * total // max(patches[-1], 1) for end in patches]
    number = bisect_right(ends, seen) - 1 if seen else 0
    if ends[number] != seen:
        raise PlanMismatch(
            f"the plan cuts this sample at token {at}, inside one of its {kind}s; {ADVICE}"
        )
    return number
