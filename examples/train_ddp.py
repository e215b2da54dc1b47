"""Train on packs in plain PyTorch, on one process or many.

    python examples/train_ddp.py --index data/index --processor data/processors/qwen2.5-vl
    torchrun --nproc-per-node 2 examples/train_ddp.py --global-batch 8 --checkpoint run.pt

The model is a tiny, randomly initialised Qwen2.5-VL; all else is what a real run needs. A step is
`--global-batch` packs, whatever the number of processes: they share them out, accumulate, and get
the same gradients. Run again with `--checkpoint`, it goes on where it was, also on another number
of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from packidx.torch import (
    PackedDataset,
    PackSampler,
    check_isolation,
    check_ranks,
    collate,
    prepare_model,
)
from packidx.torch.loss import (
    LossWeights,
    label_positions,
    packed_loss,
    seen_denominator,
)
from train_tiny import build_model


class WithLoss(torch.nn.Module):
    """The model and its loss in one forward pass, so that DDP sees all parameters used."""

    def __init__(self, model: Any, weights: LossWeights, world_size: int) -> None:
        super().__init__()
        self.model, self.weights, self.world_size = model, weights, world_size

    def forward(self, batch: dict[str, Any], denominator: float) -> torch.Tensor:
        inputs = {key: batch[key] for key in batch if key not in ("labels", "shift_labels")}
        kept = label_positions(batch)  # the logits of a whole pack would be gigabytes
        logits = self.model(**inputs, logits_to_keep=kept).logits
        # DDP averages gradients over ranks: times their number, they add up again.
        scale = self.world_size
        return packed_loss(logits, batch, self.weights, denominator, scale=scale, kept=kept)


def train_step(
    model: torch.nn.Module, loader: Any, per_rank: int, weights: LossWeights
) -> tuple[float, int]:
    """Gradients of one step from this rank's `per_rank` packs; its share of loss, its tokens."""
    loss, tokens = 0.0, 0
    batches = list(itertools.islice(loader, per_rank))
    denominator = seen_denominator(batches, weights)  # also right where a sample was skipped
    device = next(model.parameters()).device
    for number, held in enumerate(batches):
        batch = on_device(held, device)
        last = number == per_rank - 1
        silent = not last and isinstance(model, DistributedDataParallel)
        with model.no_sync() if silent else contextlib.nullcontext():
            share = model(batch, denominator)
            share.backward()
        loss, tokens = loss + float(share.detach()), tokens + batch["input_ids"].numel()
    return loss, tokens


def on_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
    }


def train(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    weights = LossWeights(args.loss_weight)
    sampler = PackSampler(
        args.index, rank=rank, world_size=world_size, global_batch=args.global_batch
    )
    dataset = PackedDataset(args.index, args.processor)
    bare = prepare_model(build_model()).to(device)  # refuses what cannot keep samples apart
    if rank == 0:
        off = check_isolation(bare, dataset)  # and this measures that it does
        print(f"packed and separate logits differ by at most {off:.1e}")
    model: torch.nn.Module = WithLoss(bare, weights, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = load(args.checkpoint, model, optimizer, sampler)
    check_ranks(dataset, sampler)  # one plan, one state, and each rank its own share
    if world_size > 1:
        # A pack of text alone leaves the vision tower without gradients.
        model = DistributedDataParallel(model, find_unused_parameters=True)
    planned_batch = sampler.index.manifest["result"]["schedule_block"]
    if rank == 0 and planned_batch not in (1, sampler.global_batch):
        print(f"the plan evens out steps of {planned_batch} packs: best is that --global-batch")
    loader = DataLoader(dataset, sampler=sampler, collate_fn=collate, num_workers=args.workers)
    batches, per_rank = iter(loader), sampler.global_batch // world_size
    for step in range(first, min(first + args.steps, sampler.num_steps)):
        begin = time.perf_counter()
        loss, tokens = train_step(model, batches, per_rank, weights)
        optimizer.step()
        optimizer.zero_grad()
        sums = torch.tensor([loss / world_size, tokens], dtype=torch.float64, device=device)
        if world_size > 1:
            dist.all_reduce(sums)
        if rank == 0:
            speed = float(sums[1]) / (time.perf_counter() - begin)
            print(f"step {step}  loss {float(sums[0]):.4f}  {speed:,.0f} tokens/s", flush=True)
            save(args.checkpoint, model, optimizer, sampler.state_at(step + 1))


def save(path: str | None, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """A checkpoint: the weights, and the sampler's state at this step."""
    if path is None:
        return
    model = getattr(model, "module", model)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": state}, path
    )


def load(path: str | None, model: Any, optimizer: Any, sampler: PackSampler) -> int:
    """Take up a checkpoint if there is one; returns the next step."""
    if path is None or not Path(path).exists():
        return 0
    found = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    sampler.load_state_dict(found["data"])
    return int(found["data"]["position"]) // sampler.global_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", default="data/index", help="folder of the pack index")
    parser.add_argument("--processor", default="data/processors/qwen2.5-vl", help="its processor")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=2, help="packs per optimizer step")
    parser.add_argument("--loss-weight", default="token", help="token, sample or square")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader worker processes")
    parser.add_argument("--checkpoint", help="file to save to, and to go on from")
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if on_gpu else 0)
    device = device if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        train(args, int(os.environ.get("RANK", "0")), world_size, device)
    finally:
        if world_size > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
