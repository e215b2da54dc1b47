"""Two ranks train a vision-language model under DDP without dummy images: aligned micro-steps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_packs import make_index, record
from tiny_models import TinyEncode, fresh
from torch.nn.parallel import DistributedDataParallel
from trained_packs import launch

from packidx.index import Index, open_index
from packidx.torch import PackedDataset, PackSampler, collate
from packidx.torch.loss import LossWeights, packed_loss

pytestmark = pytest.mark.slow

RANKS, MICRO_STEPS = 2, 4
FAMILY = "qwen2_5_vl"


def mixed_index(folder: Path, **options: Any) -> Index:
    """Packs with and without images in turns, as a mix of two sources gives them."""
    rng = np.random.default_rng(11)
    images = [record(n, [3, (4, 4), int(rng.integers(4, 20))]) for n in range(40)]
    texts = [record(n, [int(rng.integers(4, 40))]) for n in range(50)]
    folder.mkdir()
    return make_index(
        folder, {"images": images, "texts": texts}, capacity=64, group_by="media_type",
        global_batch=RANKS * MICRO_STEPS, micro_steps=MICRO_STEPS, **options,
    )  # fmt: skip


def train(rank: int, path: str, out: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = fresh(FAMILY)
    dataset = PackedDataset(path, TinyEncode(FAMILY, model))
    sampler = PackSampler(path, rank=rank, world_size=RANKS)
    ddp: Any = DistributedDataParallel(model.train(), find_unused_parameters=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = dataset.index.packs(["num_images"])["num_images"].to_numpy()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step in range(sampler.num_steps):
            packs = sampler.packs_of_step(step)[rank::RANKS]
            packs.sort(key=lambda number: images[number] > 0)  # gradients are joined after images
            for number in packs:
                batch = collate(dataset[number])
                labels = batch.pop("labels")
                last = number == packs[-1]
                with contextlib.nullcontext() if last else ddp.no_sync():
                    logits = ddp(**batch).logits
                    batch["labels"] = labels
                    packed_loss(logits, batch, LossWeights(), 100.0, scale=RANKS).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save([each.detach() for each in model.parameters()], f"{out}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_train_without_dummy_images(tmp_path: Path) -> None:
    index = mixed_index(tmp_path / "aligned", align_media=True)
    launch(train, RANKS, f"{index.path}", str(tmp_path))
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    before = list(fresh(FAMILY).parameters())
    moved = sum(not torch.equal(a, b) for a, b in zip(one, before, strict=True))
    assert moved == len(before), "every parameter was trained, the vision tower's too"


def test_a_plan_that_is_not_aligned_ends_in_an_error(tmp_path: Path) -> None:
    index = open_index(mixed_index(tmp_path / "plain", schedule="random", seed=1).path)
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="did not receive grad"):
        launch(train, RANKS, f"{index.path}", str(tmp_path))
