"""Lightning's Trainer on packs, from a StatefulDataLoader, whose state its checkpoints have."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import trainer_packs as real
from torchdata.stateful_dataloader import StatefulDataLoader

from packidx.index import Index
from packidx.torch import collate
from packidx.torch.loss import LossWeights, packed_loss

pytestmark = pytest.mark.filterwarnings("default")  # other people's
lightning = pytest.importorskip("lightning", exc_type=ImportError)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.pictures(tmp_path_factory.mktemp("lightning"))


def train(index: Index, folder: Path, resume: bool, die_at: int | None) -> None:
    known, log = real.numbered(index), (folder / "micro-steps.jsonl").open("a")
    packs = real.ordered(index)

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = real.model_of()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            weights, inputs = LossWeights(), {k: v for k, v in batch.items() if k != "labels"}
            item = number // real.BATCH * real.BATCH
            step = [packs[item + at].joined()["labels"] for at in range(real.BATCH)]
            tokens = sum(int((labels != -100).sum()) for labels in step)
            logits = self.model(**inputs).logits
            loss = packed_loss(logits, batch, weights, tokens, scale=real.BATCH)
            pack = known[tuple(batch["input_ids"][0].tolist())]
            log.write(f"{json.dumps([pack, float(loss.detach()) / real.BATCH])}\n")
            log.flush()
            if self.global_step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

    save = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=real.SAVED, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=real.STEPS,
        accumulate_grad_batches=real.BATCH,
        callbacks=[save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = StatefulDataLoader(packs, batch_size=1, collate_fn=collate)
    path = folder / f"step={real.SAVED}.ckpt" if resume else None
    trainer.fit(Module(), loader, ckpt_path=path, weights_only=False)


def test_lightning(index: Index, tmp_path: Path) -> None:
    def run(folder: Path, resume: bool, die_at: int | None) -> real.Steps:
        return real.forked(train, (index, folder, resume, die_at))

    real.compare(run, index, tmp_path)
