"""NeMo Automodel 0.7: what a recipe's YAML names beside `packidx.torch.OrderedPacks`.

dataset:
  _target_: packidx.torch.OrderedPacks
  index: data/index
  encode: data/processors/qwen2.5-vl
  global_batch: 64               # as step_scheduler.global_batch_size
  epochs: 3                      # of the run; step_scheduler.num_epochs is 1
dataloader:
  shuffle: false
  collate_fn:
    _target_: packidx.trainers.nemo.collate_packs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packidx.torch import Pack, collate
from packidx.trainers.targets import next_tokens


def collate_packs(
    packs: Sequence[Pack], processor: Any = None, attention: str = "sdpa"
) -> dict[str, Any]:
    """Return the batch of NeMo Automodel's VLM recipes: its loss shifts no labels.

    Args:
        packs: of a micro-batch.
        processor: the recipe's own, which nothing needs here.
        attention: ``'sdpa'`` or ``'flash'`` for models of transformers, ``'indexed'`` or ``'thd'``
            for NeMo's own (`packidx.torch.collate`).
    """
    pad = getattr(getattr(processor, "tokenizer", processor), "pad_token_id", None)
    batch = collate(packs, attention, pad_token_id=pad or 0)
    return {**batch, "labels": next_tokens(batch)}
