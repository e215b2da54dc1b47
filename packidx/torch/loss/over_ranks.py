"""Losses and gradients over all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from packidx.errors import MismatchError
from packidx.torch.loss.loss import Batch, LossWeights, batch_weight, check_denominator

# Sums of square roots rounded in another order differ by 1e-15, one token of 2^31 by 5e-10.
_SAME = 1e-12


def seen_denominator(
    batches: Iterable[Batch], weights: LossWeights, group: dist.ProcessGroup | None = None
) -> float:
    """The step's denominator out of this rank's batches of the step, summed over the ranks.

    All data-parallel ranks (`group`, all processes if None) must call it. For plans that do not
    know label counts: those of bare or guessed lengths.
    """
    return _summed_over_ranks([batch_weight(batch, weights) for batch in batches], group)


def correct_gradients(
    parameters: Iterable[Tensor],
    planned: float,
    seen: float | Sequence[float],
    group: dist.ProcessGroup | None = None,
    *,
    may_exceed: bool = False,
) -> float:
    """Make of gradients over the planned denominator those over the one that was seen.

    To be called by all data-parallel ranks once per step, after the last backward pass, before
    gradients are clipped. It costs one all-reduce of a number; only after holes does it touch them.

    Args:
        parameters: of the model, their gradients summed over ranks already.
        planned: `PackSampler.denominator` of the step.
        seen: `batch_weight` of this rank's batches of the step, or their sum.
        group: the data-parallel ranks; all processes if None.
        may_exceed: whether more may be seen than planned: of packs read with
            ``on_mismatch="fit"``, whose plan does not know their label tokens. `planned` is then
            whatever the loss was divided by, 1.0 where the plan knows nothing.

    Returns:
        the factor, 1.0 where everything planned was there.

    Raises:
        MismatchError: more was seen than planned, which a hole cannot do.
    """
    check_denominator(planned)
    each = [seen] if isinstance(seen, (int, float)) else seen
    total = _summed_over_ranks(each, group)
    if abs(total - planned) <= _SAME * planned or total == 0:
        return 1.0
    if total > planned and not may_exceed:
        raise MismatchError(
            f"the step's samples weigh {total:g} in the loss but were planned as {planned:g}: pass"
            " the denominator of this step and of this loss weight"
        )
    factor = planned / total
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    return factor


def _summed_over_ranks(parts: Sequence[float], group: dist.ProcessGroup | None) -> float:
    total = math.fsum(parts)
    if not (dist.is_available() and dist.is_initialized()):
        return total
    on_cpu = dist.get_backend(group) in ("gloo", "mpi")
    device = None if on_cpu else torch.accelerator.current_accelerator()
    value = torch.tensor(total, dtype=torch.float64, device=device)
    dist.all_reduce(value, group=group)
    return float(value)
