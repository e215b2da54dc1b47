"""Which segment of its row each token belongs to, as the numbers and masks that kernels want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # tokens per tile of a BlockMask, flex_attention's own default

Pack = Mapping[str, Any]


def spans(pack: Pack) -> tuple[Tensor, Tensor]:
    """Slots and true lengths of a pack's segments, int32 [segments] each.

    A slot is what a segment takes up in the row, alignment padding included. A pack without
    ``lengths`` has no padding.
    """
    slots = pack["cu_seqlens"].diff().to(torch.int32)
    lengths = pack.get("lengths")
    return slots, slots if lengths is None else lengths.to(torch.int32)


def segment_numbers(pack: Pack, *, padding: bool) -> Tensor:
    """1, 1, 2, 2, 2 …: the number of each token's segment, int64 [T].

    Args:
        padding: alignment padding is 0; otherwise it has the number of its segment.
    """
    slots, lengths = spans(pack)
    numbers = torch.arange(1, len(slots) + 1).repeat_interleave(slots.long())
    if padding:
        starts = pack["cu_seqlens"][:-1].long().repeat_interleave(slots.long())
        inside = torch.arange(len(numbers)) - starts
        numbers[inside >= lengths.long().repeat_interleave(slots.long())] = 0
    return numbers


class SameSegment:
    """The mask_mod "same segment, not later", an object so that worker processes can send it.

    Args:
        numbers: int [B, T], equal for tokens of one segment.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = self.numbers[batch, query] == self.numbers[batch, key]
        return same & (query >= key)


class SegmentBlockMask(BlockMask):
    """A BlockMask that takes the numbers its mask_mod reads along to another device."""

    mask_mod: Any

    def to(self, device: torch.device | str, **_: Any) -> SegmentBlockMask:
        """The same mask on `device`; keywords of Tensor.to (``non_blocking``) are accepted."""
        return segment_block_mask(self.mask_mod.numbers.to(device))


def segment_block_mask(numbers: Tensor) -> SegmentBlockMask:
    """Causal attention within each segment, for flex_attention.

    The tiles follow from the first and last segment of each, so nothing of size T² is made.

    Args:
        numbers: int [B, T], never falling along a row.
    """
    batch, length = numbers.shape
    pad = -length % BLOCK
    # What stands past the end belongs to no segment: a tile that reaches there is never full.
    filled = torch.cat([numbers, numbers.new_full((batch, pad), -1)], dim=1)
    tiles = filled.view(batch, -1, BLOCK)
    first = tiles[..., 0]
    last = torch.where(tiles < 0, tiles.amax(-1, keepdim=True), tiles)[..., -1]
    row, column = first[:, :, None], last[:, None, :]
    earlier = torch.ones(first.shape[1], first.shape[1], dtype=torch.bool, device=numbers.device)
    seen = (column >= row) & earlier.tril()
    whole = (tiles >= 0).all(-1) & (first == last)
    full = whole[:, :, None] & whole[:, None, :] & (row == first[:, None, :]) & earlier.tril(-1)
    mask: SegmentBlockMask = SegmentBlockMask.from_kv_blocks(
        *_listed(seen & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=SameSegment(numbers),
        seq_lengths=(length, length),
    )
    return mask


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """bool [B, rows, columns] -> how many columns each row has and which, marked ones first."""
    tiles = tiles[:, None]  # one mask for all heads
    order = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True)
    return tiles.sum(-1).to(torch.int32), order.to(torch.int32).contiguous()


def thd_bounds(packs: Sequence[Pack]) -> tuple[Tensor, Tensor]:
    """Cumulative true lengths and cumulative slots, int32 [segments + 1], of all packs in a row.

    A segment that is nothing but padding is part of the slot before it: an empty sequence is not
    something every kernel takes.
    """
    lengths: list[int] = []
    slots: list[int] = []
    for pack in packs:
        for slot, length in zip(*(each.tolist() for each in spans(pack)), strict=True):
            if length or not slots:
                lengths.append(length)
                slots.append(slot)
            else:
                slots[-1] += slot
    return _cumulative(lengths), _cumulative(slots)


def _cumulative(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
