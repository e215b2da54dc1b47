"""The shapes of what an encoder returns, learned from one healthy sample of a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from packidx.torch.sample.encoded import Encoded, PlanMismatch
from packidx.torch.sample.media_rows import TYPES, MediaTensor, Planned, grid_of, media_tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """What `encode` returns for samples with media of one kind, or without any.

    Attributes:
        has_mrope: whether with mRoPE positions.
        sequence: dtypes of the per-token tensors.
        media: the media tensors.
        token: id of the token that media features replace; None without media.
        share: so many such tokens for so many patches.
        problem: why the shape of other media cannot be told; None where it can.
    """

    has_mrope: bool
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


def learn_shape(encoded: Encoded, planned: Planned, token: int | None) -> Shape:
    """The shape of samples like `encoded`, all of whose media, if any, are of one kind.

    Args:
        encoded: a healthy sample.
        planned: its media.
        token: id of its media's feature tokens, None: the one that stands where the first begins.
    """
    sequence = {key: value.dtype for key, value in encoded.sequence.items()}
    if not planned:
        return Shape(encoded.mrope_positions is not None, sequence, {})
    grids = [grid_of(medium) for medium in planned]
    known = [grid for grid in grids if grid is not None]
    kind, at = planned[0]["kind"], planned[0]["at"]
    problem, media = None, {}
    if len(known) < len(grids) or at is None or not 0 <= at < encoded.length:
        problem = f"the plan does not say how large and where each {kind} is"
    else:
        for key, value in encoded.media.items():
            tensor = media_tensor(key, value, known)
            if tensor is None:
                problem = f"what {key} of shape {list(value.shape)} is for other {kind}s is unknown"
            else:
                media[key] = tensor
        token = int(encoded.input_ids[at]) if token is None else token
    tokens = 0 if token is None else int((encoded.input_ids == token).sum())
    patches = sum(map(math.prod, known))
    if problem is None and (kind not in TYPES or not tokens):
        problem = f"which tokens are those of a {kind} is unknown"
    share = tokens, max(patches, 1)
    return Shape(encoded.mrope_positions is not None, sequence, media, token, share, problem)
