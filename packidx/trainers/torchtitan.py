"""torchtitan 0.3: a data loader of packs of text, ``dataloader=PackedDataLoader.Config(…)``.

Plan with ``--pad-pack-to N``, N being ``training.seq_len``, where a model is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from torchtitan.components.dataloader import ParallelAwareDataloader

from packidx.errors import MismatchError
from packidx.torch import OrderedPacks, Pack, collate
from packidx.torch.sample import media_of
from packidx.trainers.targets import next_tokens


class PackedDataLoader(ParallelAwareDataloader):
    """Gives ``{"input", "positions"}`` and labels, each int64 [B, T]; positions restart with every
    sample, by which torchtitan's flex and varlen attention keep samples apart. Its state is that of
    torchtitan's own loaders."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """``dataset_path`` is the index; the others are arguments of `OrderedPacks`."""

        encode: Any = None
        global_batch: int = 1
        epochs: int = 1
        seed: int = 0

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = 1,
        **others: Any,
    ) -> None:
        packs = OrderedPacks(
            config.dataset_path, config.encode, config.global_batch, config.epochs, config.seed
        )
        names = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
        super().__init__(
            packs,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            batch_size=local_batch_size,
            sampler=StatefulDistributedSampler(packs, dp_world_size, dp_rank, shuffle=False),
            collate_fn=_collate_packs,
            snapshot_every_n_steps=snapshot_every_n_steps,
            **{name: getattr(config, name) for name in names},
        )


def _collate_packs(packs: Sequence[Pack]) -> tuple[dict[str, Tensor], Tensor]:
    for pack in packs:
        if any(media_of(sample, pack.rules) for sample in pack.samples):
            raise MismatchError(f"pack {pack.pack_id} has media: this loader is for text alone")
    batch = collate(packs)
    labels, positions = next_tokens(batch), batch["position_ids"]
    return {"input": batch["input_ids"], "positions": positions.view(-1, *labels.shape)[0]}, labels
