"""A loss that does not depend on ranks, accumulation or packing.

A step's loss is a weighted mean over all label tokens of its global batch,

    L = Σ w(n) · cross_entropy / D,    D = Σ n · w(n),

n being the label tokens of the sample (or piece) that a token belongs to. Each micro-step adds its
share of the sum over D, gradients add up to those of L, and neither how many packs a rank takes nor
which samples share a pack changes them.

`seen_denominator` is D of the step's batches, collected before the first forward pass: right also
if a sample was skipped or is longer than planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from packidx.errors import MismatchError, OptionError
from packidx.torch.joining import IGNORE

__all__ = [
    "WEIGHTS",
    "Batch",
    "LossWeights",
    "batch_weight",
    "chosen_rows",
    "label_positions",
    "loss_targets",
    "packed_loss",
    "seen_denominator",
]

WEIGHTS = {"token": 0.0, "sample": -1.0, "square": -0.5}
"""w(n) is n to the power of these."""

Batch = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weight of a label token, by the n label tokens of its sample.

    ``'token'``: 1, so every token counts the same; ``'sample'``: 1/n, so every sample does;
    ``'square'``: 1/√n, between the two. They are InternVL's ``loss_reduction``.

    Raises:
        OptionError: `name` is not one of these.
    """

    name: str = "token"

    def __post_init__(self) -> None:
        if self.name not in WEIGHTS:
            raise OptionError(f"loss weight {self.name!r} is not one of {', '.join(WEIGHTS)}")

    def per_token(self, counts: Tensor) -> Tensor:
        """w(n) for int64 `counts`, float32 of the same shape; 0 where n is 0."""
        weights: Tensor = counts.clamp(min=1).double().pow(WEIGHTS[self.name]).float()
        return weights.where(counts > 0, 0.0)

    def total(self, counts: npt.ArrayLike) -> float:
        """Σ n · w(n) over samples with `counts` label tokens each; their order does not matter."""
        array = np.asarray(counts, np.float64)
        return math.fsum((array[array > 0] ** (1 + WEIGHTS[self.name])).tolist())


def packed_loss(
    logits: Tensor,
    batch: Batch,
    weights: LossWeights,
    denominator: float,
    *,
    scale: float = 1.0,
    kept: Tensor | None = None,
    log: Callable[[Batch, Tensor], None] | None = None,
) -> Tensor:
    """This batch's share of the step's loss, a float32 scalar: Σ w · cross_entropy · scale / D.

    Args:
        logits: [B, T, V].
        batch: what `collate` returned: ``labels`` (and ``shift_labels``), ``position_ids``.
        weights: of the label tokens.
        denominator: D of the whole step, over all ranks and micro-steps.
        scale: the number that the trainer divides gradients by. DDP and FSDP average over ranks:
            the number of data-parallel ranks. A trainer that also divides each micro-step's loss by
            the accumulation steps (``accelerator.backward``): times those.
        kept: `label_positions`, where the model got them as ``logits_to_keep``: logits [B, n, V].
        log: is given the batch and each label token's cross entropy: `StepLog.add`.

    Without a label token it is 0, with a gradient of 0 for all that `logits` came from. A loss that
    does without logits (Liger's, cut_cross_entropy) gets `loss_targets` and D.

    Raises:
        OptionError: `denominator` is None or below 0, that is to say no denominator.
        MismatchError: `logits` are not of this batch, or not of these positions.
    """
    if denominator is None or not denominator >= 0:
        raise OptionError(
            f"the loss's denominator is {denominator}, not a number from 0 on: take"
            " packidx.torch.loss.seen_denominator of the step's batches"
        )
    targets, per_token = loss_targets(batch, weights)
    chosen = targets != IGNORE
    rows = chosen_rows(logits, chosen, kept).float()
    losses = functional.cross_entropy(rows, targets[chosen], reduction="none")
    if log is not None:
        log(batch, losses)
    return (losses * per_token[chosen]).sum() * (scale / (denominator or 1.0))


def label_positions(batch: Batch) -> Tensor:
    """Positions at which some row of the batch predicts a label, int64 [n], ascending.

    As ``logits_to_keep`` it spares the model all other logits.
    """
    targets, _ = loss_targets(batch, LossWeights())
    return (targets != IGNORE).any(0).nonzero()[:, 0]


def chosen_rows(logits: Tensor, chosen: Tensor, kept: Tensor | None) -> Tensor:
    """`logits` at the `chosen` positions, [n, V]."""
    inside = chosen if kept is None else chosen[:, kept]
    if logits.shape[:2] != inside.shape or (kept is not None and inside.sum() != chosen.sum()):
        raise MismatchError(
            f"logits of shape {list(logits.shape)} are not those of a batch of shape"
            f" {list(chosen.shape)}{'' if kept is None else f' at {len(kept)} kept positions'}:"
            " give the model's own, of all positions or of label_positions(batch)"
        )
    return logits[inside]


def loss_targets(batch: Batch, weights: LossWeights) -> tuple[Tensor, Tensor]:
    """Return what each position predicts and how much that counts: int64 [B, T] and float32 [B, T].

    Position t predicts ``targets[:, t]``, -100 for nothing, as in transformers' ``shift_labels``.
    For context parallelism compute both before the sequence is sharded, and shard them with it.
    """
    labels = batch["labels"]
    segments = segment_numbers(batch)
    trained = labels != IGNORE
    counts = torch.zeros(labels.numel(), dtype=torch.int64, device=labels.device)
    counts.index_add_(0, segments.flatten(), trained.flatten().long())
    per_token = weights.per_token(counts)[segments] * trained
    if "shift_labels" in batch:
        return labels, per_token
    # The first label of each sample is masked, so nothing is predicted across its border.
    shifted = functional.pad(per_token[..., 1:], (0, 1))
    return functional.pad(labels[..., 1:], (0, 1), value=IGNORE), shifted


def segment_numbers(batch: Batch) -> Tensor:
    """Number of each token's segment, int64 [B, T] below B · T, for any attention of `collate`.

    Segments are samples, the dummy image and padding, one after the other, row by row.
    """
    labels, mask = batch["labels"], batch.get("attention_mask")
    bounds = batch.get("cu_seqlens_padded", batch.get("cu_seq_lens_q"))
    if bounds is not None:
        starts = torch.zeros_like(labels, dtype=torch.bool)
        starts[..., bounds[:-1].long()] = True
    elif isinstance(mask, Tensor) and mask.shape == labels.shape:  # numbers, 0 on padding
        starts = mask.cummax(-1).values.diff(dim=-1, prepend=torch.zeros_like(mask[..., :1])) > 0
    else:  # the row that restarts; mRoPE's own rows may have 0 in the middle of a sample
        positions = batch["position_ids"]
        starts = (positions[0] if positions.ndim > labels.ndim else positions) == 0
    starts[..., 0] = True
    return (starts.flatten().cumsum(0) - 1).view_as(labels)


def batch_weight(batch: Batch, weights: LossWeights) -> float:
    """Σ n · w(n) over the samples of one batch: what it really adds to the step's denominator."""
    trained = batch["labels"] != IGNORE
    segments = segment_numbers(batch)[trained]
    return weights.total(torch.bincount(segments).cpu().numpy())


def seen_denominator(
    batches: Iterable[Batch], weights: LossWeights, group: dist.ProcessGroup | None = None
) -> float:
    """The step's denominator out of this rank's batches of the step, summed over the ranks.

    All data-parallel ranks (`group`, all processes if None) must call it.
    """
    return sum_over_ranks(math.fsum(batch_weight(batch, weights) for batch in batches), group)


def sum_over_ranks(value: float, group: dist.ProcessGroup | None = None) -> float:
    """Return the sum of the values of all ranks of `group`, which must all call it; of one process
    its own."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    on_cpu = dist.get_backend(group) in ("gloo", "mpi")
    device = None if on_cpu else torch.accelerator.current_accelerator()
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total, group=group)
    return float(total)
