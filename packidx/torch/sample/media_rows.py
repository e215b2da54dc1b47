"""Rows of media tensors: which belong to which medium."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Planned = Sequence[Mapping[str, Any]]
"""`Sample.media`: ``kind``, ``t``, ``h``, ``w`` (0 or None: unknown), ``at``, the first token."""

Grid = tuple[int, int, int]
"""Patches of one medium: time or tiles, rows, columns."""


@dataclass(frozen=True, slots=True)
class MediaTensor:
    """One of the tensors that come with media.

    Attributes:
        counts: what its rows are: ``'media'``, ``'tiles'`` (or frames: Σ t) or ``'patches'``.
        dtype: of its values.
        rest: its dimensions after the first.
        grids: whether its values are the grids (t, h, w) themselves.
    """

    counts: str
    dtype: torch.dtype
    rest: tuple[int, ...]
    grids: bool

    def blank(self, grids: list[Grid]) -> Tensor:
        """Zeros in the shape of media of these grids; the grids themselves where it holds them."""
        if not self.grids:
            return torch.zeros(_rows(grids)[self.counts], *self.rest, dtype=self.dtype)
        if self.counts == "tiles":
            grids = [(1, h, w) for t, h, w in grids for _ in range(t)]
        return torch.tensor(grids, dtype=self.dtype)


def media_tensor(key: str, value: Tensor, grids: list[Grid]) -> MediaTensor | None:
    """What `value`'s rows count, or None where that, or its values, cannot be told."""
    is_grid = key.endswith("_grid_thw")
    rows = _rows(grids)
    # In this order: images have t = 1, and then tiles and media are the same number.
    order = ("media", "tiles") if is_grid or value.ndim == 1 else ("patches", "tiles", "media")
    counts = next((name for name in order if rows[name] == value.shape[0]), None)
    if counts is None or not (is_grid or value.is_floating_point()):
        return None
    if value.ndim > 4:  # [media, tiles, channels, height, width]: tiles are not in the rows
        return None
    return MediaTensor(counts, value.dtype, tuple(value.shape[1:]), is_grid)


def _rows(grids: list[Grid]) -> dict[str, int]:
    return {
        "media": len(grids),
        "tiles": sum(t for t, _, _ in grids),
        "patches": sum(map(math.prod, grids)),
    }


def grid_of(medium: Mapping[str, Any]) -> Grid | None:
    """The planned (t, h, w), None where it is unknown."""
    sides = (medium["t"] or 0, medium["h"] or 0, medium["w"] or 0)
    return sides if all(side > 0 for side in sides) else None
