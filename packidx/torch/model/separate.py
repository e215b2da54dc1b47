"""A pack taken apart again: what each of its samples would be as a pack of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.batch.collate import media_of
from packidx.torch.batch.masks import spans
from packidx.torch.sample.encoded import SEQUENCE_FILL, TYPES, normalise

_TOKEN_NAMES = ("{}_token_id", "{}_token_index")  # where configs keep a medium's token

Pack = Mapping[str, Any]


def separate(pack: Pack, config: Any, parts: Sequence[Mapping[str, Any]] | None) -> list[Pack]:
    """Each sample of `pack` as a pack of one segment, without alignment padding.

    Args:
        config: the model's, which names the tokens that stand for media.
        parts: what `encode` returned for each sample: their media are taken instead of cut out.

    Raises:
        MismatchError: `parts` do not fit, or which media belong to which sample cannot be told.
    """
    slots, lengths = spans(pack)
    starts = (slots.cumsum(0) - slots).tolist()
    ends = [start + length for start, length in zip(starts, lengths.tolist(), strict=True)]
    bounds = list(zip(starts, ends, strict=True))
    count = len(pack["sample_ids"])
    media = _media(pack, config, bounds) if parts is None else _given(pack, parts, bounds[:count])
    return [
        {**_tokens(pack, *bounds[at]), **media[at], "sample_ids": pack["sample_ids"][at : at + 1]}
        for at in range(count)
    ]


def _tokens(pack: Pack, start: int, stop: int) -> dict[str, Any]:
    keys = ("input_ids", "labels", "position_ids", *SEQUENCE_FILL)
    one = {key: pack[key][..., start:stop] for key in keys if key in pack}
    one["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    one["max_seqlen"] = stop - start
    if pack.get("shifted"):
        one["shifted"] = True
    return one


def _given(
    pack: Pack, parts: Sequence[Mapping[str, Any]], bounds: list[tuple[int, int]]
) -> list[dict[str, Tensor]]:
    encoded = [normalise(part) for part in parts]
    shift = 1 if pack.get("shifted") else 0
    found = [one.length - shift for one in encoded]
    wanted = [stop - start for start, stop in bounds]
    if found != wanted:
        raise MismatchError(
            f"pack {pack.get('pack_id')} holds samples of {wanted} tokens but parts have {found}:"
            " give what encode returns for each of its samples, in order"
        )
    return [one.media for one in encoded]


def media_types(pack: Pack, config: Any) -> Tensor:
    """1 on tokens that stand for an image, 2 for a video, else 0; int64 [T]."""
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


def _media(pack: Pack, config: Any, bounds: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
    types = media_types(pack, config)
    found: list[dict[str, Tensor]] = [{} for _ in bounds]
    for kind, value in TYPES.items():
        tensors = {
            key: tensor
            for key, tensor in media_of(pack).items()
            if (kind == "video") == _of_video(key)
        }
        if not tensors:
            continue
        tokens = [types[start:stop] == value for start, stop in bounds]
        for one, cut in zip(found, _Cut(pack, kind, tensors, tokens).each(), strict=True):
            one.update(cut)
    return found


def _of_video(key: str) -> bool:
    return "video" in key or key == "second_per_grid_ts"


class _Cut:
    """The tensors of one kind of media, cut at the segments.

    Args:
        tokens: of each segment, bool [length], True where a token stands for this kind.
    """

    def __init__(
        self, pack: Pack, kind: str, tensors: dict[str, Tensor], tokens: list[Tensor]
    ) -> None:
        self.pack, self.kind, self.tensors, self.tokens = pack, kind, tensors, tokens
        self.counts = [int(each.sum()) for each in tokens]

    def each(self) -> list[dict[str, Tensor]]:
        rows = self._rows()  # media of each segment
        with_media = [int(count > 0) for count in rows]
        sizes = {sum(with_media): with_media, sum(rows): rows}
        grid = self.tensors.get(f"{self.kind}_grid_thw")
        if grid is not None:
            patches = torch.split(grid.prod(dim=-1), rows)
            each = [int(one.sum()) for one in patches]
            sizes = {**sizes, sum(each): each, sum(rows): rows}
        cuts: list[dict[str, Tensor]] = [{} for _ in rows]
        for key, value in self.tensors.items():
            if value.shape[0] not in sizes:
                raise self._unknown(f"{key} has {value.shape[0]} rows for {sum(rows)} media")
            parts = torch.split(value, sizes[value.shape[0]])
            for cut, part in zip(cuts, parts, strict=True):
                if len(part):
                    cut[key] = part
        return cuts

    def _rows(self) -> list[int]:
        """How many media each segment has, by whichever way of telling applies."""
        grid = self.tensors.get(f"{self.kind}_grid_thw")
        if grid is not None:
            return self._by_patches(grid.prod(dim=-1))
        named = self.tensors.get("batch_num_images")
        if named is not None and len(named) == sum(count > 0 for count in self.counts):
            numbers = iter(named.tolist())
            return [next(numbers) if count else 0 for count in self.counts]
        value = next((v for k, v in self.tensors.items() if "pixel" in k), None)
        if value is None:
            raise self._unknown("there are no pixel_values")
        runs = [_runs(each) for each in self.tokens]
        if sum(runs) == len(value):
            return runs
        with_media = [int(count > 0) for count in self.counts]
        if sum(with_media) == len(value):
            return with_media
        tokens, rest = divmod(sum(self.counts), len(value))
        if value.ndim == 4 and not rest and tokens and not any(n % tokens for n in self.counts):
            return [count // tokens for count in self.counts]
        raise self._unknown(
            f"there are {len(value)} of them and {sum(self.counts)} tokens for them"
        )

    def _by_patches(self, patches: Tensor) -> list[int]:
        """A medium has as many tokens as patches, divided by the same square for all."""
        ends = [0, *(patches.cumsum(0) * sum(self.counts) // patches.sum().clamp(min=1)).tolist()]
        rows, at, seen = [], 0, 0
        for count in self.counts:
            seen += count
            if seen not in ends:
                raise self._unknown("a segment ends inside one")
            stop = ends.index(seen)
            rows.append(stop - at)
            at = stop
        return rows

    def _unknown(self, what: str) -> MismatchError:
        return MismatchError(
            f"pack {self.pack.get('pack_id')}: which {self.kind}s belong to which sample cannot be"
            f" told ({what}): give parts=, what encode returns for each sample of the pack"
        )


def _runs(marked: Tensor) -> int:
    """Number of runs of True in bool [length]."""
    before = torch.nn.functional.pad(marked[:-1], (1, 0)) if len(marked) else marked
    return int((marked & ~before).sum())
