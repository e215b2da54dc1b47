"""The shapes of what an encoder returns, learned from one healthy sample of a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packidx.torch.sample.encoded import TYPES, Encoded, PlanMismatch
from packidx.torch.sample.media import Grid, Planned, grid_of


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


@dataclass(frozen=True, slots=True)
class Shape:
    """What `encode` returns for samples with media of one kind, or without any.

    Attributes:
        has_rows: whether with mRoPE positions.
        sequence: dtypes of the per-token tensors.
        media: the media tensors.
        token: id of the token that media features replace; None without media.
        share: so many such tokens for so many patches.
        problem: why the shape of other media cannot be told; None where it can.
    """

    has_rows: bool
    sequence: Mapping[str, torch.dtype]
    media: Mapping[str, MediaTensor]
    token: int | None = None
    share: tuple[int, int] = (0, 1)
    problem: str | None = None

    def tokens_of(self, medium: Mapping[str, Any], length: int) -> slice:
        """Where in a sample of `length` tokens the feature tokens of a medium go.

        Raises:
            PlanMismatch: the plan does not say, or they do not fit.
        """
        grid, at = grid_of(medium), medium["at"]
        tokens, patches = self.share
        count, rest = divmod(tokens * math.prod(grid or (0,)), patches)
        if at is None or at < 0 or not count or rest:
            raise PlanMismatch(f"the plan does not say how large and where a {medium['kind']} is")
        if at + count > length:
            raise PlanMismatch(
                f"a {medium['kind']} of {count} tokens at {at} does not fit its {length} tokens"
            )
        return slice(at, at + count)


def learn_shape(part: Encoded, planned: Planned, token: int | None) -> Shape:
    """The shape of samples like `part`, all of whose media, if any, are of one kind.

    Args:
        part: a healthy sample.
        planned: its media.
        token: id of its media's feature tokens, None: the one that stands where the first begins.
    """
    sequence = {key: value.dtype for key, value in part.sequence.items()}
    if not planned:
        return Shape(part.rows is not None, sequence, {})
    grids = [grid_of(medium) for medium in planned]
    known = [grid for grid in grids if grid is not None]
    kind, at = planned[0]["kind"], planned[0]["at"]
    problem, media = None, {}
    if len(known) < len(grids) or at is None or not 0 <= at < part.length:
        problem = f"the plan does not say how large and where each {kind} is"
    else:
        for key, value in part.media.items():
            tensor = _media_tensor(key, value, known)
            if tensor is None:
                problem = f"what {key} of shape {list(value.shape)} is for other {kind}s is unknown"
            else:
                media[key] = tensor
        token = int(part.input_ids[at]) if token is None else token
    found = 0 if token is None else int((part.input_ids == token).sum())
    patches = sum(map(math.prod, known))
    if problem is None and (kind not in TYPES or not found):
        problem = f"which tokens are those of a {kind} is unknown"
    share = found, max(patches, 1)
    return Shape(part.rows is not None, sequence, media, token, share, problem)


def _media_tensor(key: str, value: Tensor, grids: list[Grid]) -> MediaTensor | None:
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
