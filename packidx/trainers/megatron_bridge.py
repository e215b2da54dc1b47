"""Megatron-Bridge 0.3: a provider of packs, ``ConfigContainer(dataset=PackedProvider(…))``.

Packs are read in the order of training by Megatron's sequential sampler, whose ``consumed_samples``
counts packs and is all that a checkpoint needs. Bridge's VLM step packs for itself: it gets each
sample as a row, joins the rows of a micro-batch and keeps them apart. It asks for
``micro_batch_size`` 2 or more, so plan packs of half the tokens that a GPU takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from megatron.bridge.training.config import DatasetBuildContext, DatasetProvider
from megatron.bridge.training.utils.visual_inputs import Qwen2_5_VLVisualInputs
from torch.utils.data import Dataset

from packidx.torch import OrderedPacks, Pack, collate
from packidx.trainers.targets import next_tokens


@dataclass(kw_only=True)
class PackedProvider(DatasetProvider):  # type: ignore[misc]
    """Builds the training data of `index`, as many epochs as ``train_iters`` take.

    Args:
        index: path of an index.
        encode: of `packidx.torch.PackedDataset`, such as a processor's folder.
        global_batch: as ``train.global_batch_size``.
        seq_length: of the model; the index's capacity, at most.
        seed: of the order.
    """

    index: str
    encode: Any
    global_batch: int
    seq_length: int
    seed: int = 0
    dataloader_type: Literal["single"] = "single"
    pack_sequences_in_batch: bool = True
    skip_getting_attention_mask_from_dataset: bool = True

    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any, None, None]:
        """Return data for training; an index is planned for that alone."""
        one = OrderedPacks(self.index, self.encode, self.global_batch, 1, self.seed)
        epochs = -(-context.train_samples // len(one))
        return (
            _Packs(OrderedPacks(one.index, self.encode, self.global_batch, epochs, self.seed)),
            None,
            None,
        )


class _Packs(Dataset[Pack]):
    def __init__(self, packs: OrderedPacks) -> None:
        self.packs = packs

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, i: int) -> Pack:
        return self.packs[i]

    @staticmethod
    def collate_fn(packs: Sequence[Pack]) -> dict[str, Any]:
        """The samples of a micro-batch, a row each [samples, longest], padded with 0, by which
        Bridge knows padding; pixels and grids of all of them."""
        batch = collate([sample for pack in packs for sample in pack.alone()])
        labels = next_tokens(batch)
        positions = batch["position_ids"].view(-1, *labels.shape)[0]
        grids = batch.get("image_grid_thw")
        media = Qwen2_5_VLVisualInputs(batch.get("pixel_values"), grids)
        return {
            "tokens": batch["input_ids"],
            "labels": labels,
            "loss_mask": (labels != -100).float(),
            "position_ids": positions.contiguous(),
            "visual_inputs": None if grids is None else media,
        }
