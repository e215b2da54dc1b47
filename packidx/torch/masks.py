"""Number the segments of a row of packed samples, and make the masks that kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from packidx.torch.encoded import Pack

BLOCK = 128  # tokens per tile of a BlockMask, flex_attention's own default


def spans(pack: Pack) -> tuple[Tensor, Tensor]:
    """Slots and true lengths of a pack's segments, int32 [segments] each.

    A slot is what a segment takes up in the row, alignment padding included. A pack without
    ``lengths`` has no padding.
    """
    slots = pack["cu_seqlens"].diff().to(torch.int32)
    lengths = pack.get("lengths")
    return slots, slots if lengths is None else lengths.to(torch.int32)


def segment_numbers(pack: Pack, *, padding: bool) -> Tensor:
    """1, 1, 2, 2, 2 …: each token's segment, int64 [T]; with `padding` alignment padding is 0."""
    slots, lengths = spans(pack)
    numbers = torch.arange(1, len(slots) + 1).repeat_interleave(slots.long())
    if padding:
        starts = pack["cu_seqlens"][:-1].long().repeat_interleave(slots.long())
        inside = torch.arange(len(numbers)) - starts
        numbers[inside >= lengths.long().repeat_interleave(slots.long())] = 0
    return numbers


class Between:
    """The mask_mod "key in [first[query], last[query]]", an object so that workers can send it.

    Args:
        first, last: int64 [B, T], columns of the row, the token's own among them; neither ever
            falls along a row.
    """

    def __init__(self, first: Tensor, last: Tensor) -> None:
        self.first, self.last = first, last

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= self.first[batch, query]) & (key <= self.last[batch, query])

    def to(self, device: torch.device | str) -> Between:
        return Between(self.first.to(device), self.last.to(device))


def causal_within(numbers: Tensor) -> Between:
    """Return a mask function: a token sees its own segment up to itself.

    Args:
        numbers: int64 [B, T], another one wherever another segment begins.
    """
    column = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    begins = numbers.diff(dim=-1, prepend=numbers[:, :1]) != 0
    return Between(torch.where(begins, column, 0).cummax(-1).values, column)


class PackBlockMask(BlockMask):
    """A BlockMask that takes the tensors its mask_mod reads along to another device."""

    mask_mod: Any

    def to(self, device: torch.device | str, **_: Any) -> PackBlockMask:
        """The same mask on `device`; keywords of Tensor.to (``non_blocking``) are accepted."""
        return block_mask(self.mask_mod.to(device))


def block_mask(rule: Between) -> PackBlockMask:
    """`rule` for flex_attention, one mask [B, 1, T, T] for all heads.

    What the tokens of a tile see follows from its first and last token, because neither bound ever
    falls: nothing of size T² is made.
    """
    length = rule.first.shape[1]
    starts = torch.arange(0, length, BLOCK, device=rule.first.device)
    ends = starts + BLOCK - 1
    last = ends.clamp(max=length - 1)

    some = rule.first[:, starts, None], rule.last[:, last, None]  # seen by some token of the tile
    every = rule.first[:, last, None], rule.last[:, starts, None]  # and by each of them
    seen = (ends >= some[0]) & (starts <= some[1])
    full = (starts >= every[0]) & (ends <= every[1]) & (ends < length)[:, None]
    mask: PackBlockMask = PackBlockMask.from_kv_blocks(
        *_listed(seen & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=rule,
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
