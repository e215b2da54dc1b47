"""The loss of packs, equal to that of their samples one by one."""

from packidx.torch.loss.loss import (
    WEIGHTS,
    Batch,
    LossWeights,
    batch_weight,
    chosen_rows,
    correct_gradients,
    label_positions,
    loss_targets,
    packed_loss,
    seen_denominator,
)

__all__ = [
    "Batch",
    "LossWeights",
    "WEIGHTS",
    "batch_weight",
    "chosen_rows",
    "correct_gradients",
    "label_positions",
    "loss_targets",
    "packed_loss",
    "seen_denominator",
]
