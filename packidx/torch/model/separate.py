"""A pack taken apart again: what each of its samples would be as a pack of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.batch.collate import media_of
from packidx.torch.batch.masks import spans
from packidx.torch.sample.encoded import Pack, normalise
from packidx.torch.sample.join_rules import fills
from packidx.torch.sample.media_rows import TYPES, Unsplit, by_kind, split_by_sample

_TOKEN_NAMES = ("{}_token_id", "{}_token_index")  # where configs keep a medium's token


def separate(pack: Pack, config: Any, encoded: Sequence[Mapping[str, Any]] | None) -> list[Pack]:
    """Each sample of `pack` as a pack of one segment, without alignment padding.

    Args:
        config: the model's, which names the tokens that stand for media.
        encoded: what `encode` returned for each sample: their media are taken instead of cut out.

    Raises:
        MismatchError: `encoded` does not fit, or which media belong to which sample cannot be told.
    """
    slots, lengths = spans(pack)
    starts = slots.cumsum(0) - slots
    bounds = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    count = len(pack["sample_ids"])
    if encoded is None:
        media = _split_media(pack, config, bounds)
    else:
        media = _given_media(pack, encoded, bounds[:count])
    return [
        {**_tokens(pack, *bounds[at]), **media[at], "sample_ids": pack["sample_ids"][at : at + 1]}
        for at in range(count)
    ]


def _tokens(pack: Pack, start: int, stop: int) -> dict[str, Any]:
    keys = ("input_ids", "labels", "position_ids", *fills(pack.get("join")))
    segment = {key: pack[key][..., start:stop] for key in keys if key in pack}
    segment["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    segment["max_seqlen"] = stop - start
    if pack.get("shifted"):
        segment["shifted"] = True
    return segment


def _given_media(
    pack: Pack, encoded: Sequence[Mapping[str, Any]], bounds: list[tuple[int, int]]
) -> list[dict[str, Tensor]]:
    samples = [normalise(sample, pack.get("join")) for sample in encoded]
    shift = 1 if pack.get("shifted") else 0
    given = [sample.length - shift for sample in samples]
    wanted = [stop - start for start, stop in bounds]
    if given != wanted:
        raise MismatchError(
            f"pack {pack.get('pack_id')} holds samples of {wanted} tokens but those of encoded="
            f" have {given}: give what encode returns for each of its samples, in order"
        )
    return [sample.media for sample in samples]


def media_types(pack: Pack, config: Any) -> Tensor:
    """1 on tokens that stand for an image, 2 for a video, 3 for audio, else 0; int64 [T]."""
    if "mm_token_type_ids" in pack:
        types: Tensor = pack["mm_token_type_ids"].long()
        return types
    ids: Tensor = pack["input_ids"]
    types = torch.zeros_like(ids)
    for kind, value in TYPES.items():
        for name in _TOKEN_NAMES:
            token = getattr(config, name.format(kind), None)
            if isinstance(token, int):
                types[ids == token] = value
    return types


def _split_media(pack: Pack, config: Any, bounds: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
    types = media_types(pack, config)
    media: list[dict[str, Tensor]] = [{} for _ in bounds]
    for kind, tensors in by_kind(media_of(pack)).items():
        is_medium = [types[start:stop] == TYPES[kind] for start, stop in bounds]
        try:
            parts = split_by_sample(kind, tensors, is_medium, pack.get("join"))
        except Unsplit as error:
            raise MismatchError(
                f"pack {pack.get('pack_id')}: which {kind}s belong to which sample cannot be told"
                f" ({error}): give encoded=, what encode returns for each sample of the pack"
            ) from None
        for segment, part in zip(media, parts, strict=True):
            segment.update(part)
    return media
