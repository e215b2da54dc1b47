"""A piece of a sample, cut out."""

from __future__ import annotations

from collections.abc import Mapping

from packidx.torch.sample.encoded import Encoded, cut_media


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
    rows = sample.rows
    if rows is not None:
        rows = rows[:, start:stop]
        rows = rows - rows[:, :1].min()
    return Encoded(
        sample.input_ids[start:stop],
        sample.labels[start:stop].clone(),
        rows,
        {key: value[start:stop] for key, value in sample.sequence.items()},
        cut_media(sample, start, stop, media_ids),
    )


def shift(sample: Encoded) -> Encoded:
    """`sample` for trainers that do not shift: position t is labelled with token t + 1."""
    return Encoded(
        sample.input_ids[:-1],
        sample.labels[1:],
        None if sample.rows is None else sample.rows[:, :-1],
        {key: value[:-1] for key, value in sample.sequence.items()},
        sample.media,
    )
