"""One step under DDP: the same gradients for any split of its packs over ranks and micro-steps."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from trained_packs import (
    BATCH,
    Encode,
    gradients,
    largest_difference,
    launch,
    one_loop,
    planned_denominator,
    tiny_model,
    trained_index,
)

from packidx.index import open_index
from packidx.torch import PackedDataset, PackSampler, collate
from packidx.torch.loss import (
    WEIGHTS,
    LossWeights,
    packed_loss,
    seen_denominator,
)

pytestmark = pytest.mark.slow

RANKS = (1, 2, 4, 8)


def backward(
    path: str, rank: int, world_size: int, name: str, group: Any
) -> tuple[dict[str, torch.Tensor], float, float]:
    """Gradients of step 0 on this rank, its loss, and what that was divided by."""
    weights = LossWeights(name)
    sampler = PackSampler(path, rank=rank, world_size=world_size, global_batch=BATCH)
    model: Any = DistributedDataParallel(tiny_model(), process_group=group)
    per_rank, total = BATCH // world_size, 0.0
    dataset = PackedDataset(path, Encode())
    loader = DataLoader(dataset, sampler=sampler, collate_fn=collate)
    batches = list(itertools.islice(loader, per_rank))
    seen = seen_denominator(batches, weights, group)
    for number, batch in enumerate(batches):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        with contextlib.nullcontext() if number == per_rank - 1 else model.no_sync():
            loss = packed_loss(model(**inputs).logits, batch, weights, seen, scale=world_size)
            loss.backward()
        total += float(loss.detach()) / world_size
    return gradients(model), total, seen


def work(rank: int, path: str, out: str) -> None:
    dist.init_process_group("gloo")
    groups = {size: dist.new_group(list(range(size))) for size in RANKS}
    for size in RANKS:
        if rank >= size:
            continue
        for name in WEIGHTS:
            result = backward(path, rank, size, name, groups[size])
            torch.save(result, f"{out}/{name}-{size}-{rank}.pt")
    batches = [{"labels": torch.tensor([[-100, *[1] * (rank + 1)]])}]
    batches[0]["position_ids"] = torch.arange(rank + 2)[None]
    assert seen_denominator(batches, LossWeights()) == 36
    assert seen_denominator(batches, LossWeights("sample")) == 8
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ddp")
    trained_index(folder)
    launch(work, max(RANKS), str(folder / "index"), str(folder))
    return folder, folder / "index"


@pytest.mark.parametrize("name", WEIGHTS)
def test_gradients_do_not_depend_on_ranks(results: tuple[Path, Path], name: str) -> None:
    folder, path = results
    index = open_index(path)
    sampler = PackSampler(index, global_batch=BATCH)
    packs, planned = sampler.packs_of_step(0), planned_denominator(sampler, 0, name)
    labels = [index.pack(k).stats["label_tokens"] for k in packs]
    assert max(labels) >= 100 * min(labels)
    expected, loss = one_loop(PackedDataset(path, Encode()), name)
    assert max(float(each.abs().max()) for each in expected.values()) > 1e-2
    for size in RANKS:
        files = [folder / f"{name}-{size}-{rank}.pt" for rank in range(size)]
        found = [torch.load(file) for file in files]
        difference = max(largest_difference(one[0], expected) for one in found)
        print(f"{name} {size} x {BATCH // size}: {difference:.1e}")
        assert difference < 1e-5
        assert [one[2] for one in found] == pytest.approx([planned] * size)
        assert sum(one[1] for one in found) == pytest.approx(loss, abs=1e-5)
