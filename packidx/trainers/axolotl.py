"""axolotl on packs: a plugin, and what the configuration has beside it.

plugins: [packidx.trainers.axolotl.PackedPlugin]
packidx: {index: data/index, processor: Qwen/Qwen2.5-VL-7B-Instruct}
curriculum_sampling: true
remove_unused_columns: false
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from axolotl.common.datasets import TrainDatasetMeta
from axolotl.core.trainers.base import AxolotlTrainer
from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from packidx.errors import OptionError
from packidx.torch import OrderedPacks, as_hf_dataset, collate
from packidx.trainers.huggingface import TrainsOnPacks

_MUST_BE = {"curriculum_sampling": True, "remove_unused_columns": False}


class PackedArgs(BaseModel):
    """The keys that the plugin adds to axolotl's configuration."""

    packidx: dict[str, Any]
    """``index``, ``processor`` and, if wanted, ``seed`` of the order, ``attention`` of collate."""


class PackedTrainer(TrainsOnPacks, AxolotlTrainer):  # type: ignore[misc]
    """axolotl's Trainer for packs."""


class PackedCollator:
    """`collate` as axolotl makes its collators: of a tokenizer and options of its own."""

    def __init__(self, tokenizer: Any = None, *, attention: str = "sdpa", **_: Any) -> None:
        self.attention = attention

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        return collate(rows, self.attention)


class PackedPlugin(BasePlugin):  # type: ignore[misc]  # axolotl is not type-checked
    """Gives axolotl the packs of all epochs in the order of training, as one epoch of its own."""

    def get_input_args(self) -> str:
        return f"{__name__}.PackedArgs"

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> TrainDatasetMeta:
        for name, value in _MUST_BE.items():
            if cfg[name] is not value:
                raise OptionError(f"{name} is {cfg[name]}: packs need {name}: {str(value).lower()}")
        epochs = math.ceil(cfg.num_epochs)
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        batch = cfg.micro_batch_size * cfg.gradient_accumulation_steps * ranks
        seed = cfg.packidx.get("seed") or 0
        own = cfg.packidx
        packs = OrderedPacks(own["index"], own["processor"], batch, epochs, seed)
        cfg.num_epochs = cfg.num_epochs / epochs
        steps = cfg.max_steps or math.ceil(len(packs) * cfg.num_epochs / batch)
        return TrainDatasetMeta(as_hf_dataset(packs), None, steps)

    def get_trainer_cls(self, cfg: Any) -> type[PackedTrainer]:
        return PackedTrainer

    def get_collator_cls_and_kwargs(
        self, cfg: Any, is_eval: bool = False
    ) -> tuple[type[PackedCollator], dict[str, Any]]:
        return PackedCollator, {"attention": cfg.packidx.get("attention") or "sdpa"}
