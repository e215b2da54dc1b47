"""transformers' Trainer on packs: `PackedTrainer`.

A plain Trainer shuffles packs one by one and resumes some models wrongly. This one trains in the
plan's order, divides the loss by the step's label tokens, and its checkpoints go on with any number
of processes.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from packidx.encode.imports import allow_cuda_torchvision
from packidx.errors import MismatchError, OptionError
from packidx.torch import PackedDataset, PackSampler, StepLog, check_ranks, collate, prepare_model
from packidx.torch.loss import (
    LossWeights,
    batch_weight,
    label_positions,
    packed_loss,
    seen_denominator,
)

allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
from transformers import PreTrainedModel, Trainer, TrainingArguments  # noqa: E402

__all__ = ["PackedTrainer", "TrainsOnPacks"]

_NOT_THE_MODELS = ("labels", "shift_labels", "sample_table")
_ORDER = "packs.json"  # in a checkpoint: the sampler's state


class TrainsOnPacks(Trainer):  # type: ignore[misc]  # transformers is not type-checked
    """Methods that a Trainer of any library lacks for packs; a base class before that Trainer's.

    It prepares the model, or refuses it (`prepare_model`). It loads a checkpoint by
    `from_pretrained`: a Trainer saves Qwen2.5-VL and others under names of which it finds none
    again, and goes on from random weights (huggingface/transformers#43701). And it divides the loss
    by the label tokens of the step: where a model says that it cannot, as these do, a Trainer takes
    the mean of the packs' means.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The model itself where PEFT has wrapped it.
        prepare_model(getattr(self.model, "get_base_model", lambda: self.model)())
        self.model_accepts_loss_kwargs = True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        model = self.model if model is None else model
        if self.is_fsdp_enabled or not isinstance(model, PreTrainedModel):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        saved = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())


class PackedTrainer(TrainsOnPacks):
    """A Trainer that takes a `PackedDataset` and trains in the order of its plan.

    An optimizer step has per_device_train_batch_size × gradient_accumulation_steps × processes
    packs. `num_train_epochs` are epochs of the plan, `max_steps` goes through as many as it needs;
    the seed of the order is `data_seed`, 0 if there is none. A checkpoint has the sampler's state
    in ``packs.json``, and training resumes from it with the same packs per step, on any number of
    processes, its weights as `TrainsOnPacks` says.

    Args:
        model: of transformers; it is prepared (`prepare_model`).
        args: `TrainingArguments`.
        train_dataset: a `PackedDataset`; evaluation takes one as well, or parts of one.
        weight: of a label token in the loss, a name of `LossWeights`.
        attention: of `collate`, as the model was loaded.
        log: folder of a `StepLog`; None for none.
        options: all else that a Trainer takes.

    Raises:
        OptionError: another dataset, several GPUs in one process, or a global batch that is not the
            plan's (``--global-batch``).
        MismatchError: the model lets samples see one another, the ranks do not agree, or a
            checkpoint is of another plan, seed or batch.
    """

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        train_dataset: PackedDataset,
        *,
        weight: str = "token",
        attention: str = "sdpa",
        log: str | None = None,
        **options: Any,
    ) -> None:
        if "data_collator" in options:
            raise OptionError("data_collator is packidx.torch.collate here: give attention= to it")
        _check_arguments(args, train_dataset)
        collator = partial(collate, attention=attention, sample_table=log is not None)
        super().__init__(
            model, args, data_collator=collator, train_dataset=train_dataset, **options
        )
        self.weights = LossWeights(weight)
        self.log_folder = log
        self.step_log: StepLog | None = None
        self._logged = -1  # the last step of the run in it
        self.tokens = 0  # that this process has trained on
        # Two names, of newer and of older releases, for a loss that is not divided once more.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = True
        sampler = PackSampler(
            train_dataset.index,
            rank=args.process_index,
            world_size=args.world_size,
            global_batch=_global_batch(args),
            seed=args.data_seed or 0,
        )
        check_ranks(train_dataset, sampler)
        self.order = _Order(sampler, self)

    def train(self, *args: Any, **options: Any) -> Any:
        if self.log_folder is None:
            return super().train(*args, **options)
        log = StepLog(self.log_folder, self.order.epoch(0))
        with contextlib.closing(log) as self.step_log:
            return super().train(*args, **options)

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, *args: Any, **options: Any
    ) -> None:
        # After each step, and once more at the end of an epoch.
        if self.step_log is not None and self._logged != self.state.global_step:
            self._logged = self.state.global_step
            sampler = self.order.at(self._logged - 1)
            self.step_log.sampler = sampler
            position = sampler.state_dict()["position"]
            self.step_log.end_step(position // sampler.global_batch, grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **options)

    def get_train_dataloader(self) -> DataLoader:
        # Not through accelerator.prepare: it deals to ranks, as the sampler has done already.
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=self.order,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=self.args.dataloader_persistent_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], float]:
        batches = list(itertools.islice(epoch_iterator, num_batches))
        self.tokens += sum(batch["input_ids"].numel() for batch in batches)
        # The step's batches are all here: what they hold is the sampler's denominator(step) unless
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
        arguments = {key: inputs[key] for key in inputs if key not in _NOT_THE_MODELS}
        outputs = model(**arguments, logits_to_keep=kept)
        denominator, scale = num_items_in_batch, self.args.world_size  # over which DDP averages
        if not model.training:
            denominator, scale = batch_weight(inputs, self.weights), 1
        log = self.step_log.add if self.step_log is not None and model.training else None
        loss = packed_loss(
            outputs.logits, inputs, self.weights, denominator, scale=scale, kept=kept, log=log
        )
        return (loss, outputs) if return_outputs else loss

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.is_world_process_zero():
            state = self.order.at(self.state.global_step).state_dict()
            (Path(output_dir) / _ORDER).write_text(json.dumps(state))
        if self.step_log is not None:
            self.step_log.close()  # a run that is killed later has logged what is in the checkpoint

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            order = Path(checkpoint) / _ORDER
            if not order.exists():
                raise MismatchError(
                    f"{checkpoint} has no {_ORDER}, which says what packs it was trained on:"
                    " load the model from it, and train without resume_from_checkpoint"
                )
            # Refuses another plan, seed or global batch; the Trainer itself counts the steps.
            self.order.epoch(0).load_state_dict(json.loads(order.read_text()))
        super()._load_optimizer_and_scheduler(checkpoint)


class _Order(Sampler[int]):
    """A rank's packs of each of the Trainer's epochs, in turn."""

    def __init__(self, sampler: PackSampler, trainer: Trainer) -> None:
        self._sampler, self._trainer = sampler, trainer

    def epoch(self, epoch: int) -> PackSampler:
        """A sampler of its own at the beginning of `epoch`."""
        sampler = copy.copy(self._sampler)
        sampler.set_epoch(epoch)
        return sampler

    def at(self, step: int) -> PackSampler:
        """One that stands where `step` optimizer steps of the run are done."""
        epoch, step = divmod(step, self._sampler.num_steps)
        sampler = self.epoch(epoch)
        sampler.load_state_dict(sampler.state_at(step))
        return sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        return iter(self.epoch(self._trainer.state.global_step // self._sampler.num_steps))


def _check_arguments(args: TrainingArguments, dataset: Any) -> None:
    if not isinstance(dataset, PackedDataset):
        raise OptionError(
            f"train_dataset is {type(dataset).__name__}, not a PackedDataset: a plain Trainer with"
            " data_collator=packidx.torch.collate takes other data sets of packs"
        )
    if args.n_gpu > 1:
        raise OptionError(
            f"one process has {args.n_gpu} GPUs, over which a Trainer would split each pack: start"
            f" it with torchrun --nproc-per-node {args.n_gpu}, or set CUDA_VISIBLE_DEVICES=0"
        )
    if args.auto_find_batch_size:
        raise OptionError(
            "auto_find_batch_size would change the packs of a step: turn it off and plan a smaller"
            " --capacity if a pack does not fit the memory"
        )
    options, batch = dataset.index.snapshot.options, _global_batch(args)
    if options.schedule != "random" and options.global_batch not in (None, batch):
        raise OptionError(
            f"the plan is for steps of {options.global_batch} packs (--global-batch), the Trainer's"
            f" have {batch}: per_device_train_batch_size {args.per_device_train_batch_size} x"
            f" gradient_accumulation_steps {args.gradient_accumulation_steps} x {args.world_size}"
            " processes: change the accumulation, or plan anew"
        )


def _global_batch(args: TrainingArguments) -> int:
    """Packs of an optimizer step, over all ranks and accumulation."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
