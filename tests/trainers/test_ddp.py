"""PyTorch's DDP, and Accelerate, on two processes: a loop of the user's own on packs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hf_runs
import pytest
import torch
import torch.distributed as dist
import torchvision_cpu  # noqa: F401  (before transformers)
import trainer_packs as real
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from packidx.index import Index
from packidx.torch import PackedDataset, PackSampler, collate
from packidx.torch.loss import LossWeights, packed_loss

pytestmark = pytest.mark.filterwarnings("default")  # other people's
RANKS, SAVED = 2, hf_runs.SAVED
Prepare = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def by_torch(model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
    return DistributedDataParallel(model, find_unused_parameters=True), optimizer, loader


def by_accelerate(model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
    from accelerate import Accelerator, DistributedDataParallelKwargs

    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[unused])
    prepared: tuple[Any, Any, Any] = accelerator.prepare(model, optimizer, loader)
    return prepared


def train(prepare: Prepare, index: Index, folder: Path, rank: int, resume: bool, die: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, and not used
    place = f"file://{folder}/meeting-{resume}"
    dist.init_process_group("gloo", place, rank=rank, world_size=RANKS)
    own = {"rank": rank, "world_size": RANKS} if prepare is by_torch else {}
    sampler = PackSampler(index, global_batch=real.BATCH, **own)
    dataset, model = PackedDataset(index, real.Encode()), real.model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done, checkpoint = 0, folder / "checkpoint.pt"
    if resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        sampler.load_state_dict(json.loads(saved["packs"]))
        done = SAVED
    loader = DataLoader(dataset, batch_size=1, sampler=sampler, collate_fn=collate)
    model, optimizer, loader = prepare(model, optimizer, loader)
    known, weights, parts = real.numbered(index), LossWeights(), real.BATCH // RANKS
    with (folder / f"{rank}.jsonl").open("a") as log:
        while done < real.STEPS:
            begin = sampler.state_dict()["position"] // real.BATCH
            for number, batch in enumerate(loader):
                step = begin + number // parts
                inputs = {key: value for key, value in batch.items() if key != "labels"}
                packs = [dataset[k].joined()["labels"] for k in sampler.packs_of_step(step)]
                tokens = sum(int((labels != -100).sum()) for labels in packs)
                loss = packed_loss(model(**inputs).logits, batch, weights, tokens, scale=RANKS)
                loss.backward()
                pack = known[tuple(batch["input_ids"][0].tolist())]
                log.write(f"{json.dumps([pack, float(loss.detach()) / RANKS])}\n")
                log.flush()
                if number % parts == parts - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                    done += 1
                    if done == SAVED and rank == 0 and not resume:
                        inner = getattr(model, "module", model)
                        state = json.dumps(sampler.state_at(step + 1))
                        torch.save({"model": inner.state_dict(), "packs": state}, checkpoint)
                    if done == die:
                        dist.barrier()
                        os.kill(os.getpid(), signal.SIGKILL)
                    if done == real.STEPS:
                        break
            sampler.set_epoch(sampler.epoch + 1)
    dist.destroy_process_group()


def steps_of(
    prepare: Prepare, index: Index, folder: Path, resume: bool, die: int | None
) -> hf_runs.Steps:
    """The packs in the order of training, and each step's loss, over both ranks."""
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("fork")
    for rank in range(RANKS):
        (folder / f"{rank}.jsonl").write_text("")
    processes = [
        context.Process(target=train, args=(prepare, index, folder, rank, resume, die), daemon=True)
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == (0 if die is None else -signal.SIGKILL)
    logs = [(folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    own = [[json.loads(line) for line in log] for log in logs]
    return hf_runs.steps_in([row for together in zip(*own, strict=True) for row in together])


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [by_torch, by_accelerate])
def test_two_processes(prepare: Prepare, tmp_path: Path) -> None:
    if prepare is by_accelerate:
        pytest.importorskip("accelerate", exc_type=ImportError)
    index = real.pictures(tmp_path)
    hf_runs.compare(partial(steps_of, prepare, index), index, tmp_path)
