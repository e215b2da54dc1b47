"""Labels as trainers want them that do not shift: position t's is the token behind t."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def next_tokens(batch: dict[str, Any]) -> Tensor:
    """Return the labels of a batch of `packidx.torch.collate`, int64 [B, T], so that position t
    predicts ``labels[:, t]``; its own are taken out.

    The first label of every sample is -100, so none predicts a token of another sample.
    """
    labels: Tensor = batch.pop("labels")
    labels = labels.roll(-1, dims=-1)
    labels[..., -1] = -100
    return labels
