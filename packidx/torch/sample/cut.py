"""A piece of a sample, cut out."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.sample.encoded import Encoded
from packidx.torch.sample.media_rows import TYPES, by_kind, cut_media


def cut(sample: Encoded, start: int, stop: int, media_ids: Mapping[str, int] | None) -> Encoded:
    """Tokens [start, stop) of `sample` with the media that stand wholly inside.

    Positions start again at the piece.

    Args:
        media_ids: token id of each kind of medium, ``{"image": 151655}``; not needed where the
            sample has ``mm_token_type_ids``.

    Raises:
        PlanMismatch: a medium would be cut.
        MismatchError: where the media stand is unknown.
    """
    positions = sample.mrope_positions
    if positions is not None:
        positions = positions[:, start:stop]
        positions = positions - positions[:, :1].min()
    media: dict[str, Tensor] = {}
    for kind, tensors in by_kind(sample.media).items():
        media |= cut_media(kind, tensors, _media_tokens(sample, kind, media_ids), start, stop)
    return Encoded(
        sample.input_ids[start:stop],
        sample.labels[start:stop].clone(),
        positions,
        {key: value[start:stop] for key, value in sample.sequence.items()},
        media,
    )


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


def shift(sample: Encoded) -> Encoded:
    """`sample` for trainers that do not shift: position t is labelled with token t + 1."""
    positions = sample.mrope_positions
    return Encoded(
        sample.input_ids[:-1],
        sample.labels[1:],
        None if positions is None else positions[:, :-1],
        {key: value[:-1] for key, value in sample.sequence.items()},
        sample.media,
    )
