"""A sample made to fit its pack: cut to its piece, shifted, padded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.format.index import Options
from packidx.torch.sample.encoded import IGNORE, Encoded, normalise
from packidx.torch.sample.join_rules import SEQUENCE_FILL, rules_of
from packidx.torch.sample.media_rows import TYPES, by_kind, cut_media

ON_MISMATCH = ("error", "drop", "truncate", "fit")
ON_ERROR = ("raise", "hole")


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of `PackedDataset` of these names."""

    on_mismatch: str = "error"
    on_error: str = "raise"
    retries: int = 3

    def __post_init__(self) -> None:
        for name, value, known in (
            ("on_mismatch", self.on_mismatch, ON_MISMATCH),
            ("on_error", self.on_error, ON_ERROR),
        ):
            if value not in known:
                raise OptionError(f"{name} {value!r} is none of {', '.join(known)}")
        if operator.index(self.retries) < 0:
            raise OptionError(f"retries is {self.retries}: it must be 0 or more")

    @property
    def fits(self) -> bool:
        return self.on_mismatch == "fit"

    @property
    def makes_holes(self) -> bool:
        """Whether what stands for a sample must have the shape that was planned for it."""
        return not self.fits and (self.on_mismatch != "error" or self.on_error == "hole")


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
    piece = sample.between(start, stop)
    piece.labels = piece.labels.clone()
    piece.media = {}
    if piece.mrope_positions is not None:
        piece.mrope_positions = piece.mrope_positions - piece.mrope_positions[:, :1].min()
    for kind, tensors in by_kind(sample.media).items():
        marked = _media_tokens(sample, kind, media_ids)
        piece.media |= cut_media(kind, tensors, marked, start, stop, sample.rules)
    return piece


def begins_medium(sample: Encoded, at: int, media_ids: Mapping[str, int] | None) -> bool:
    """Whether the token `at` stands for a medium, as far as `encode` says (`cut`)."""
    return any(bool(_media_tokens(sample, kind, media_ids)[at]) for kind in by_kind(sample.media))


def parts_medium(sample: Encoded, at: int, media_ids: Mapping[str, int] | None) -> bool:
    """Whether a cut before token `at` would fall between two tokens of one medium, or may."""
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


def shift(sample: Encoded) -> Encoded:
    """`sample` for trainers that do not shift: position t is labelled with token t + 1."""
    return replace(sample.between(0, sample.length - 1), labels=sample.labels[1:])


def extend(sample: Encoded, length: int, pad_token_id: int) -> Encoded:
    """`sample` followed by pad tokens up to `length`: labels -100, positions that go on counting.

    The pad tokens belong to the sample's segment: they see it, and nothing sees them.
    """
    missing = length - sample.length
    if not missing:
        return sample
    positions = sample.mrope_positions
    if positions is not None:
        begin = int(positions.max()) + 1 if sample.length else 0
        positions = torch.cat([positions, (begin + torch.arange(missing)).expand(3, -1)], dim=1)
    return Encoded(
        _filled(sample.input_ids, missing, pad_token_id),
        _filled(sample.labels, missing, IGNORE),
        positions,
        {
            key: _filled(value, missing, SEQUENCE_FILL.get(key, 0))
            for key, value in sample.sequence.items()
        },
        sample.media,
        sample.rules,
    )


def pad_tokens(length: int, pad_token_id: int) -> Encoded:
    """Nothing but pad tokens."""
    ids = torch.full((length,), pad_token_id, dtype=torch.int64)
    return Encoded(ids, torch.full_like(ids, IGNORE), None)


def up_to(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def _filled(values: Tensor, count: int, fill: int) -> Tensor:
    return torch.cat([values, values.new_full((count,), fill)])


_SIDE = 32  # pixels; processors enlarge it to the least they take


def encode_dummy(
    encode: Callable[[dict[str, Any]], Mapping[str, Any]], record: Mapping[str, Any] | None
) -> Encoded:
    """`record`, or a user's turn with a small grey image, as a sample without labels.

    Raises:
        OptionError: `encode` makes no media of it.
    """
    given = encode(made_up("image") if record is None else dict(record))
    sample = normalise(given, rules_of(encode))
    if not sample.media:
        raise OptionError(
            "encode returned no media for the dummy image: give dummy_image= a record of its own"
            " kind with one small image in it"
        )
    sample.labels.fill_(IGNORE)
    return sample


def check_reserve(dummy: Encoded, options: Options, capacity: int) -> None:
    """Whether the plan `options` leave room for `dummy` in every pack.

    Raises:
        OptionError: they do not.
    """
    needed = up_to(up_to(dummy.length, options.align), options.pad_pack_to)
    if options.reserve < needed:
        raise OptionError(
            f"the dummy image takes {needed} tokens and the plan reserves {options.reserve} of each"
            f" pack's {capacity}: plan with --reserve {needed}"
        )


def made_up(kind: str) -> dict[str, Any]:
    """A record: ``'image'``, a user's turn with a small grey one; ``''``, two words."""
    if not kind:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        return {"messages": turns}
    if kind != "image":
        raise OptionError(f"no {kind} can be made up: give encode a method hole(length, media)")
    from PIL import Image

    image = Image.new("RGB", (_SIDE, _SIDE), (127, 127, 127))
    return {"messages": [{"role": "user", "content": [{"type": "image", "image": image}]}]}
