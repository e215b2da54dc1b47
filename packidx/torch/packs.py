"""A pack: its samples, each by itself, and the one way in which they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.events import Happened
from packidx.torch.joining import Rules, join_media, token_fills
from packidx.torch.pixels import TABLE
from packidx.torch.sample import Sample, length_of, media_of

_NONE = torch.zeros(0, dtype=torch.int64)
NOTHING: Sample = {"input_ids": _NONE, "labels": _NONE, "position_ids": _NONE}


class Segment(NamedTuple):
    """A sample of a row: the part between two restarts of its positions.

    Attributes:
        tensors: of a sample or of the dummy image, without padding; of no token where the segment
            is the row's own padding.
        slot: tokens that it takes up in the row, padding at its end included.
        pad_token_id: what that padding is made of.
    """

    tensors: Sample
    slot: int
    pad_token_id: int = 0

    @property
    def length(self) -> int:
        """Tokens without padding."""
        return length_of(self.tensors)


@dataclass(eq=False, repr=False)
class Pack:
    """Pack `pack_id` of a plan: what is left of its samples, read, encoded and cut as planned.

    Attributes:
        pack_id: its number.
        epoch: of the stream that gave it out; 0 of an index.
        sample_ids, source_ids, positions: int64 [n], of its samples in order; a source's number is
            that in the manifest's list, a position counts the planned samples of the pack from 0.
        segments: the n samples, then the dummy image and the pack's own padding, if there are any.
        rules: how `encode` says that its own tensors are joined.
        events: what went otherwise than planned, a list of dicts, as in `events`.
        stream: of a stream's, what `StreamLoader` keeps of it.
        pixel_table: float32 [frames, 256, channels], where pixels are bytes: what a value of a
            channel becomes (`normalise_pixels`).
    """

    pack_id: int
    epoch: int
    sample_ids: Tensor
    source_ids: Tensor
    positions: Tensor
    segments: list[Segment]
    rules: Rules | None = None
    events: Happened = field(default_factory=list)
    stream: dict[str, Any] | None = None
    pixel_table: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __repr__(self) -> str:
        tokens = sum(segment.length for segment in self.segments)
        return f"Pack(pack_id={self.pack_id}, {len(self)} samples, {tokens:,} tokens)"

    @property
    def samples(self) -> list[Sample]:
        """The tensors of each sample, without padding; what is changed in them is joined.

        - ``input_ids``, ``labels`` int64 [T]: the first label is -100
        - ``position_ids`` int64 [T]; or [3, T], the sample's own mRoPE positions
        - every other per-token tensor that `encode` returned, [T]
        - the tensors of its media, as `encode` returned them
        """
        return [segment.tensors for segment in self.segments[: len(self)]]

    def alone(self) -> list[Pack]:
        """Each sample as a pack of its own, without padding."""
        own = ("sample_ids", "source_ids", "positions")
        return [
            replace(
                self,
                **{name: getattr(self, name)[at : at + 1] for name in own},
                segments=[Segment(sample, length_of(sample))],
                events=[],
                stream=None,
            )
            for at, sample in enumerate(self.samples)
        ]

    def joined(self) -> dict[str, Any]:
        """The whole pack as one dict.

        - ``input_ids``, ``labels`` int64 [T]
        - ``position_ids`` int64 [T], restarting per segment; or [4, T] where `encode` returns mRoPE
          positions: row 0 restarts per segment, rows 1 to 3 are the sample's own
        - ``cu_seqlens`` int32 [s + 1], ``max_seqlen`` int: where the s segments start, padding at
          their ends included, and the longest
        - ``lengths`` int32 [s]: tokens of each segment without padding
        - every other per-token tensor, [T]
        - every tensor of media, joined in order: on dimension 0, but for those of which `joining`
          knows another way
        - ``pack_id``, ``sample_ids``, ``source_ids``, and ``pixel_table`` where it says something
        """
        joined: dict[str, Any] = dict(join_segments([self.segments], self.rules))
        for key in ("position_ids", *token_fills(self.rules)):
            if key in joined:
                joined[key] = joined[key].squeeze(-2)
        slots = [segment.slot for segment in self.segments]
        lengths = [segment.length for segment in self.segments]
        joined["cu_seqlens"] = torch.tensor([0, *accumulate(slots)], dtype=torch.int32)
        joined["max_seqlen"] = max(slots)
        joined["lengths"] = torch.tensor(lengths, dtype=torch.int32)
        joined["pack_id"] = self.pack_id
        joined["sample_ids"], joined["source_ids"] = self.sample_ids, self.source_ids
        if self.pixel_table is not None:
            joined[TABLE] = torch.from_numpy(self.pixel_table)
        return joined

    def __reduce__(self) -> tuple[Any, ...]:
        """Join tensors to one of each type: a worker hands every tensor over as a file that stays
        open."""
        grouped: dict[torch.dtype, list[Tensor]] = {}
        shapes = []
        for each in self.segments:
            for value in each.tensors.values():
                grouped.setdefault(value.dtype, []).append(value.flatten())
            shapes.append([(key, v.dtype, v.shape) for key, v in each.tensors.items()])
        joined = {dtype: torch.cat(tensors) for dtype, tensors in grouped.items()}
        others = [(each.slot, each.pad_token_id) for each in self.segments]
        return _split_tensors, ({**vars(self), "segments": []}, joined, shapes, others)


def _split_tensors(
    fields: dict[str, Any],
    joined: dict[torch.dtype, Tensor],
    shapes: list[list[tuple[str, torch.dtype, torch.Size]]],
    others: list[tuple[int, int]],
) -> Pack:
    pack, taken = Pack(**fields), dict.fromkeys(joined, 0)
    for named, other in zip(shapes, others, strict=True):
        tensors = {}
        for key, dtype, shape in named:
            begin = taken[dtype]
            taken[dtype] = begin + shape.numel()
            tensors[key] = joined[dtype][begin : taken[dtype]].view(shape)
        pack.segments.append(Segment(tensors, *other))
    return pack


def join_segments(rows: Sequence[Sequence[Segment]], rules: Rules | None) -> dict[str, Tensor]:
    """Join the segments of each row, and the rows, which are equally long.

    Returns ``input_ids``, ``labels`` and the other per-token tensors [B, T], ``position_ids``
    [B, T] or [4, B, T], and the media tensors of all rows.

    Raises:
        MismatchError: a sample's tensors are not as long as its tokens, or those of several samples
            do not go together.
    """
    segments = [segment for row in rows for segment in row]
    has_three = any(segment.tensors["position_ids"].ndim == 2 for segment in segments)
    batch = {}
    for key, fill in token_fills(rules).items():
        given = [segment.tensors[key] for segment in segments if key in segment.tensors]
        if given:
            own = [
                torch.cat([_pad_tensor(each, key, fill, given[0]) for each in row]) for row in rows
            ]
            batch[key] = torch.stack(own)
    positions = [
        torch.cat([_pad_positions(each, has_three) for each in row], dim=-1) for row in rows
    ]
    batch["position_ids"] = torch.stack(positions, dim=-2)
    return batch | join_media([media_of(segment.tensors, rules) for segment in segments], rules)


def _pad_tensor(segment: Segment, key: str, fill: int, like: Tensor) -> Tensor:
    """Return a per-token tensor of a segment, [slot], of the type of `like`; `fill` throughout
    where it has none."""
    fill = segment.pad_token_id if key == "input_ids" else fill
    if key not in segment.tensors:
        return like.new_full((segment.slot,), fill)
    value = segment.tensors[key]
    return torch.cat([value, value.new_full((_padding_size(segment, key),), fill)])


def _padding_size(segment: Segment, key: str) -> int:
    """Return how many tokens of padding a per-token tensor of a segment gets.

    Raises:
        MismatchError: it is not as long as the tokens, or these are more than the slot.
    """
    length, own = segment.length, segment.tensors[key].shape[-1]
    if own != length or length > segment.slot:
        raise MismatchError(
            f"a sample has {own} {key} and {length} tokens in a slot of {segment.slot}: whatever is"
            " changed in a pack's samples, their lengths must stay"
        )
    return segment.slot - length


def _pad_positions(segment: Segment, has_three: bool) -> Tensor:
    """Return the positions of a segment, which go on through its padding, [slot] or [4, slot].

    Args:
        has_three: whether to return a row that counts from 0 and three of mRoPE.
    """
    count = torch.arange(segment.slot)
    own = segment.tensors["position_ids"]
    if own.ndim == 1:
        return count.expand(4, -1) if has_three else count
    missing = _padding_size(segment, "position_ids")
    begin = int(own.max()) + 1 if own.shape[1] else 0
    three = torch.cat([own, (begin + torch.arange(missing)).expand(3, -1)], dim=1)
    return torch.cat([count[None], three])
