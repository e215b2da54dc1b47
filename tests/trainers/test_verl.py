"""verl's own SFT loader, collator, model inputs and loss, on packs.

Its engine wants CUDA to shard the model; what it feeds a model with, and what it makes of the
logits, is called on its class without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)

pytest.importorskip("verl.trainer.sft_trainer", exc_type=ImportError)

import trainer_packs as real
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer, create_sft_dataset
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.losses import sft_loss

from packidx.index import Index
from packidx.trainers.verl import in_order


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.pictures(tmp_path_factory.mktemp("verl"))


def config_of(index: Index) -> Any:
    data = {
        "train_files": index.path,
        "train_batch_size": real.BATCH,
        "pad_mode": "no_padding",
        "num_workers": 0,
        "custom_cls": {"path": "pkg://packidx.trainers.verl", "name": "Packs"},
        "packidx": {"epochs": real.EPOCHS},
    }
    return OmegaConf.create({"data": data}, flags={"allow_objects": True})


def loader_of(index: Index, rank: int = 0, world_size: int = 1) -> Any:
    """As the trainer makes it of its configuration."""
    config = config_of(index)
    config.data.packidx.encode = real.Encode()
    trainer = in_order(SFTTrainer).__new__(in_order(SFTTrainer))
    trainer.config = config
    trainer.train_dataset = create_sft_dataset(config.data.train_files, config.data, None, None)
    trainer.val_dataset = None
    trainer.engine = SimpleNamespace(
        get_data_parallel_rank=lambda: rank, get_data_parallel_size=lambda: world_size
    )
    trainer._build_dataloader()
    return trainer.train_dataloader


def rows_of(batches: Any) -> Iterator[Any]:
    return (row for batch in batches for row in batch["input_ids"].unbind())


def test_its_loader_gives_the_packs_in_order_and_resumes(index: Index) -> None:
    real.check_loader(index, loader_of, rows_of)


def test_its_loss_is_that_of_plain_pytorch(index: Index) -> None:
    model = real.model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    vars(engine).update(use_ulysses_sp=False, pad_to_length=False)
    losses = []
    for batch, _ in zip(loader_of(index), range(real.STEPS), strict=False):
        tokens = int(sum(mask.sum() for mask in batch["loss_mask"].unbind()))
        facts = {"temperature": 1.0, "dp_size": 1, "batch_num_tokens": tokens}
        data = tu.get_tensordict(tensor_dict=batch, non_tensor_dict=facts)
        total = 0.0
        for micro in tu.chunk_tensordict(data, real.BATCH):
            inputs, notes = engine.prepare_model_inputs(micro)
            output = model(**inputs, use_cache=False)
            out = engine.prepare_model_outputs(output, notes, micro, None)
            loss, _ = sft_loss(None, out, micro)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    assert losses == pytest.approx(real.plain_losses(index, real.model_of()), abs=1e-5)
