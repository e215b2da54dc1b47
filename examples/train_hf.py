"""Train on packs with transformers' Trainer, on one process or many.

    python examples/train_hf.py --index data/index --processor data/processors/qwen2.5-vl
    torchrun --nproc-per-node 2 examples/train_hf.py --global-batch 8

The model is a tiny, randomly initialised Qwen2.5-VL. Checkpoints resume as usual, also on another
number of processes.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch

from packidx.encode.imports import allow_cuda_torchvision
from packidx.torch import PackedDataset, prepare_model
from train_tiny import build_model

allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
from transformers import TrainerCallback, TrainingArguments  # noqa: E402

from packidx.trainers.huggingface import PackedTrainer  # noqa: E402


class _Speed(TrainerCallback):
    """Prints each step's loss and tokens per second."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.seen, self.begin = 0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begin = self.begin or time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in (logs or {}) and state.is_world_process_zero:
            now, seen = time.perf_counter(), self.trainer.tokens
            speed = (seen - self.seen) * args.world_size / (now - self.begin)
            print(f"step {state.global_step}  loss {logs['loss']}  {speed:,.0f} tokens/s")
            self.seen, self.begin = seen, now


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", default="data/index", help="folder of the pack index")
    parser.add_argument("--processor", default="data/processors/qwen2.5-vl", help="its processor")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=2, help="packs per optimizer step")
    parser.add_argument("--loss-weight", default="token", help="token, sample or square")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader worker processes")
    parser.add_argument("--output", default="data/run-hf", help="folder of checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from its last checkpoint")
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
    settings = TrainingArguments(
        args.output,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=args.global_batch // world_size,
        max_steps=args.steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        save_steps=args.steps,
        dataloader_num_workers=args.workers,
        use_cpu=not torch.cuda.is_available(),
        # A pack of text alone leaves the vision tower without gradients.
        ddp_find_unused_parameters=True,
    )
    speed = _Speed()
    speed.trainer = PackedTrainer(
        prepare_model(build_model()),
        settings,
        PackedDataset(args.index, args.processor),
        weight=args.loss_weight,
        callbacks=[speed],
    )
    speed.trainer.train(resume_from_checkpoint=args.resume or None)
    if world_size > 1:  # or a rank may be aborted while it ends
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
