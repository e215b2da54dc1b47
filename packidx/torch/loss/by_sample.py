"""Cross-entropy per sample and per source of packed batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from packidx.errors import MismatchError, OptionError
from packidx.torch.loss.loss import Batch, LossWeights, chosen_rows, loss_targets
from packidx.torch.sample.encoded import IGNORE


def loss_by(
    kind: str,
    logits: Tensor,
    batch: Batch,
    packs: Batch | Sequence[Batch],
    *,
    kept: Tensor | None = None,
) -> dict[int, tuple[float, int]]:
    """Summed cross-entropy and number of label tokens per sample or per source, without gradients.

    Sums of several batches and ranks may be added; their quotient is the mean loss per token.

    Args:
        kind: ``'sample'`` or ``'source'``.
        logits, kept: as in `packed_loss`.
        batch: what ``collate(packs)`` returned.
        packs: one pack or those of this batch, with ``sample_ids`` or ``source_ids`` and
            ``cu_seqlens``.

    Returns:
        {sample id, or number in the manifest's list of sources: (sum, label tokens)}.

    Raises:
        OptionError: another `kind`.
        MismatchError: `packs` are not those of `batch`.
    """
    if kind not in ("sample", "source"):
        raise OptionError(f"loss_by knows 'sample' and 'source', not {kind!r}")
    packs = [packs] if isinstance(packs, Mapping) else list(packs)
    targets, _ = loss_targets(batch, LossWeights())
    chosen = targets != IGNORE
    with torch.no_grad():
        losses = torch.zeros(targets.shape, dtype=torch.float64, device=targets.device)
        rows = chosen_rows(logits.detach(), chosen, kept).float()
        losses[chosen] = functional.cross_entropy(rows, targets[chosen], reduction="none").double()
    sums: dict[int, tuple[float, int]] = {}
    for pack, row, start in _where_packs_are(batch, packs):
        ids, bounds = pack[f"{kind}_ids"].tolist(), pack["cu_seqlens"].tolist()
        for ident, begin, end in zip(ids, bounds, bounds[1:], strict=False):
            span = slice(start + begin, start + end)
            old = sums.get(ident, (0.0, 0))
            count = int(chosen[row, span].sum())
            sums[ident] = (old[0] + float(losses[row, span].sum()), old[1] + count)
    return sums


def _where_packs_are(batch: Batch, packs: Sequence[Batch]) -> list[tuple[Batch, int, int]]:
    """Each pack with its row of the batch and the position in the row where it begins."""
    height, width = batch["labels"].shape
    sizes = [int(pack["cu_seqlens"][-1]) for pack in packs]
    if height == len(packs) and max(sizes, default=0) <= width:
        return [(pack, row, 0) for row, pack in enumerate(packs)]
    if height == 1 and sum(sizes) <= width:
        starts = np.cumsum([0, *sizes]).tolist()
        return [(pack, 0, start) for pack, start in zip(packs, starts, strict=False)]
    raise MismatchError(
        f"{len(packs)} packs of {sum(sizes)} tokens are not those of a batch of {height} x {width}"
    )
