"""verl 0.9.1, SFT: ``data.custom_cls.path=pkg://packidx.trainers.verl``, ``name=Packs``.

    data.train_files=data/index          # or INDEX@ID; a list of one
    data.train_batch_size=64             # packs of a step, over all ranks
    data.pad_mode=no_padding
    data.use_dynamic_bsz=False  data.micro_batch_size_per_gpu=1
    +data.packidx.epochs=3  +data.packidx.seed=0     # trainer.total_epochs is 1

verl shuffles with a seed of its own: each pack comes once in an epoch, but in another order, unless
training goes by ``in_order(SFTTrainer)``.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from packidx.torch import OrderedPacks
from packidx.torch.sample import media_of


class Packs(Dataset[dict[str, Any]]):
    """Item i is the i-th pack of training as verl's SFT data sets give a sample: ``input_ids`` and
    ``loss_mask`` int64 [T], ``position_ids`` [T] or [4, T], which restart with every sample, and
    ``multi_modal_inputs``, the tensors of media: its collator wants them of all packs or none.
    """

    def __init__(
        self,
        parquet_files: Any,
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        path = parquet_files if isinstance(parquet_files, str) else parquet_files[0]
        given = dict(config.get("packidx") or {})
        given.setdefault("encode", processor or tokenizer)
        self.packs = OrderedPacks(path, global_batch=config["train_batch_size"], **given)

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        pack = self.packs[i]
        joined = pack.joined()
        held = [media_of(segment.tensors, pack.rules) for segment in pack.segments]
        return {
            "input_ids": joined["input_ids"],
            "position_ids": joined["position_ids"],
            "loss_mask": (joined["labels"] != -100).long(),
            "multi_modal_inputs": {name: joined[name] for name in set().union(*held)},
        }


def in_order(trainer: type) -> type:
    """A subclass of verl's ``SFTTrainer`` whose sampler goes on one by one."""

    class InOrder(trainer):  # type: ignore[misc]
        def _build_dataloader(self) -> None:
            super()._build_dataloader()
            self.train_sampler.shuffle = False

    return InOrder
