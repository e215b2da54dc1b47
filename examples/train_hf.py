"""Train on packs with transformers' Trainer, on one process or many.

    python examples/train_hf.py --index data/index --processor data/processors/qwen2.5-vl
    torchrun --nproc-per-node 2 examples/train_hf.py --global-batch 8

`PackedTrainer` is what a Trainer needs: an order that nobody shuffles or shards a second time, and
a loss that does not depend on ranks and accumulation. The model is a tiny, randomly initialised
Qwen2.5-VL. Checkpoints resume as usual, also on another number of processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from packidx.encode import ProcessorEncoder
from packidx.encode.imports import allow_cuda_torchvision
from packidx.torch import PackedDataset, PackSampler, check_ranks, collate, prepare_model
from packidx.torch.loss import (
    LossWeights,
    batch_weight,
    label_positions,
    packed_loss,
    seen_denominator,
)
from train_tiny import build_model

allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

_ORDER = "packs.json"  # in a checkpoint: the sampler's state


class PackedTrainer(Trainer):
    """A Trainer whose order is a `PackSampler`'s and whose loss has the step's denominator.

    Its global batch is per_device_train_batch_size × gradient_accumulation_steps × processes.
    """

    def __init__(self, *args: Any, sampler: PackSampler, weight: str = "token", **options: Any):
        super().__init__(*args, data_collator=collate, **options)
        self.sampler, self.weights, self.tokens = sampler, LossWeights(weight), 0
        # Two names, of newer and of older releases, for a loss that nobody divides once more.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = True
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        mine, theirs = (sampler.world_size, sampler.global_batch), (self.args.world_size, batch)
        if mine != (theirs[0], theirs[0] * theirs[1]):
            raise ValueError(
                f"the sampler has world_size {mine[0]} and global_batch {mine[1]}, the Trainer"
                f" {theirs[0]} processes of {theirs[1]} packs per step: let them agree"
            )
        self.progress = _Epochs(sampler)
        self.add_callback(self.progress)

    def get_train_dataloader(self) -> DataLoader:
        # Not through accelerator.prepare: it deals to ranks, as the sampler has done already.
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=self.sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        # Trainer saves weights by the names they have on the hub and, where a model has others,
        # finds none of them again and goes on from random ones (huggingface/transformers#43701).
        model = self.model if model is None else model
        order = Path(resume_from_checkpoint) / _ORDER
        if order.exists():
            self.progress.resume(json.loads(order.read_text()))
        saved = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], float]:
        batches = list(itertools.islice(epoch_iterator, num_batches))
        self.tokens += sum(batch["input_ids"].numel() for batch in batches)
        # The step's batches are all here: what they hold is self.sampler.denominator(step) unless
        # samples were unreadable, and then it is right, too.
        return batches, seen_denominator(batches, self.weights)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        kept = label_positions(inputs)
        arguments = {key: inputs[key] for key in inputs if key not in ("labels", "shift_labels")}
        outputs = model(**arguments, logits_to_keep=kept)
        denominator, scale = num_items_in_batch, self.args.world_size  # over which DDP averages
        if not model.training:
            denominator, scale = batch_weight(inputs, self.weights), 1
        loss = packed_loss(
            outputs.logits, inputs, self.weights, denominator, scale=scale, kept=kept
        )
        return (loss, outputs) if return_outputs else loss


class _Epochs(TrainerCallback):
    """Every epoch has its own order; Trainer does not tell a sampler where training is."""

    def __init__(self, sampler: PackSampler) -> None:
        self.sampler = sampler
        self.done = 0  # optimizer steps of this epoch

    def resume(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint's `state`; refuses another snapshot, seed or global batch."""
        # From the epoch's beginning: Trainer passes over what is done by itself.
        self.sampler.load_state_dict({**state, "position": 0})
        self.done = int(state["position"]) // self.sampler.global_batch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epoch = int(state.epoch or 0)
        if epoch != self.sampler.epoch or not state.global_step:
            self.done = 0
        self.sampler.set_epoch(epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.done += 1

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / _ORDER).write_text(json.dumps(self.sampler.state_at(self.done)))


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
    rank = int(os.environ.get("RANK", "0"))
    sampler = PackSampler(
        args.index, rank=rank, world_size=world_size, global_batch=args.global_batch
    )
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
    dataset = PackedDataset(args.index, ProcessorEncoder(args.processor))
    check_ranks(dataset, sampler)  # TrainingArguments have formed the group
    speed = _Speed()
    speed.trainer = PackedTrainer(
        prepare_model(build_model()),
        settings,
        train_dataset=dataset,
        sampler=sampler,
        weight=args.loss_weight,
        callbacks=[speed],
    )
    speed.trainer.train(resume_from_checkpoint=args.resume or None)
    if world_size > 1:  # or a rank may be aborted while it ends
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
