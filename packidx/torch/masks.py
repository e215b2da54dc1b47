"""Make the masks that kernels take for rows of packed samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # tokens per tile of a BlockMask, flex_attention's own default


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
