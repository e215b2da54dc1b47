"""What the tests of trainers share: packs of a tiny model, a plain loop to compare with, and runs
that are killed and resumed.

`make test-trainers` puts the trainers' packages on Python's path; where one cannot be imported its
tests are skipped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from small_packs import make_index, record
from tiny_models import fresh
from torch_packs import SyntheticEncode

from packidx.index import Index
from packidx.torch import OrderedPacks, PackSampler, collate

FAMILY = "qwen2_5_vl"
CAPACITY = 64
BATCH = 4
EPOCHS = 2
STEPS = 20


def pictures(folder: Path) -> Index:
    """Packs of texts and images, of 20 steps or more in two epochs."""
    sizes = [[12 + n % 17] if n % 3 else [5, (4, 4 + 4 * (n % 2)), 6] for n in range(160)]
    return planned(folder, sizes)


def texts(folder: Path) -> Index:
    """Packs of text alone."""
    return planned(folder, [[9 + n % 23] for n in range(160)])


def planned(folder: Path, sizes: list[Any]) -> Index:
    records = [record(n, parts) for n, parts in enumerate(sizes)]
    options = {"capacity": CAPACITY, "global_batch": BATCH, "micro_steps": 2}
    index = make_index(folder, {"all": records}, **options)
    assert index.num_packs // BATCH * EPOCHS >= STEPS
    return index


class Encode(SyntheticEncode):
    """Trains on two tokens of three."""

    def __init__(self) -> None:
        super().__init__(patch_dim=3 * 2 * 4 * 4)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        sample = super().__call__(record)
        labels = sample["input_ids"].clone()
        labels[torch.arange(len(labels)) % 3 == 0] = -100
        return {**sample, "labels": labels}


def ordered(index: Index) -> OrderedPacks:
    return OrderedPacks(index, Encode(), BATCH, EPOCHS)


def packs_of(index: Index, rank: int, world_size: int) -> list[int]:
    """Numbers of the packs that a `PackSampler` gives one rank in all epochs."""
    sampler = PackSampler(index, rank=rank, world_size=world_size, global_batch=BATCH)
    numbers: list[int] = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        numbers += sampler
    return numbers


def model_of() -> Any:
    return fresh(FAMILY).train()


def plain_losses(index: Index, model: Any, texts_only: bool = False) -> list[float]:
    """Losses per label token of plain PyTorch, a micro-batch a pack, SGD; with `texts_only` of a
    model without images and their positions."""
    packs, optimizer = ordered(index), torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        batches = [collate([packs[step * BATCH + at]]) for at in range(BATCH)]
        tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            labels = batch.pop("labels")
            if texts_only:
                names = ("input_ids", "position_ids", "use_cache")
                batch = {name: batch[name] for name in names}
                batch["position_ids"] = batch["position_ids"][0]
            logits = model(**batch).logits[:, :-1].flatten(0, 1)
            summed = torch.nn.functional.cross_entropy(
                logits.float(), labels[:, 1:].flatten(), reduction="sum"
            )
            (summed / tokens).backward()
            total += float(summed.detach()) / tokens
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def numbered(index: Index) -> dict[tuple[int, ...], int]:
    """The packs by their tokens."""
    packs = ordered(index).dataset
    return {tuple(packs[k].joined()["input_ids"].tolist()): k for k in range(len(packs))}


def numbers_of(index: Index, rows: Iterator[Any]) -> list[int]:
    known = numbered(index)
    return [known[tuple(row.tolist())] for row in rows]


def check_loader(
    index: Index, loader_of: Callable[..., Any], rows_of: Callable[[Any], Iterator[Any]]
) -> None:
    """A trainer's loader gives each rank its packs in order, and goes on by its own state.

    Args:
        loader_of: (index, rank, world_size) → the loader; its batches are packs of one step.
        rows_of: the loader → the tokens of each pack.
    """
    for world_size in (1, 2, 4):
        for rank in range(world_size):
            found = numbers_of(index, rows_of(loader_of(index, rank, world_size)))
            assert found == packs_of(index, rank, world_size)
    loader, again, done = loader_of(index, 0, 1), loader_of(index, 0, 1), 0
    batches = iter(loader)
    while done < 7 * BATCH:
        done += len([*rows_of([next(batches)])])
    again.load_state_dict(loader.state_dict())
    assert numbers_of(index, rows_of(again)) == packs_of(index, 0, 1)[done:]


SAVED, KILLED = 10, 13  # steps after which a run has a checkpoint, and dies

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": BATCH,
    "max_steps": STEPS,
    "optim": "sgd",
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "save_steps": SAVED,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "dataloader_pin_memory": False,
}
"""`TrainingArguments` of a run like that of `plain_losses`."""

Train = Callable[[str, bool], None]
"""Trains into a folder, from its last checkpoint if it is to resume."""


def tokenizer() -> Any:
    """Of the tiny model's tokens: SFTTrainer gives the model its special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({str(n): n for n in range(96)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")


Steps = tuple[list[int], list[float]]
"""Packs that a run trained on, and the losses of its steps."""


def check(train: Train, index: Index, folder: Path) -> None:
    """Check a trainer that derives from the Trainer."""
    compare(partial(steps_of, train, index), index, folder)


def compare(run: Callable[[Path, bool, int | None], Steps], index: Index, folder: Path) -> None:
    """A run has the packs and losses of the plain loop; a killed one goes on with the rest."""
    packs, losses = run(folder / "whole", False, None)
    assert packs == packs_of(index, 0, 1)[: len(packs)]
    assert losses == pytest.approx(plain_losses(index, model_of()), abs=1e-5)
    assert losses[-1] < losses[0]
    run(folder / "killed", False, KILLED)
    again, rest = run(folder / "killed", True, None)
    assert again == packs[SAVED * BATCH :]
    assert rest == pytest.approx(losses[SAVED:], abs=1e-5)


def steps_of(train: Train, index: Index, folder: Path, resume: bool, die_at: int | None) -> Steps:
    return forked(_trained, (train, index, folder, resume, die_at))


def forked(work: Callable[..., None], given: tuple[Any, ...]) -> Steps:
    """Run `work` in a process that dies where its last argument says so.

    Args:
        given: its arguments, with the folder, ``resume`` and ``die_at`` at the end. It writes lines
            ``[pack, loss]`` into ``micro-steps.jsonl`` of the folder.
    """
    *_, folder, _, die_at = given
    folder.mkdir(exist_ok=True)
    log = folder / "micro-steps.jsonl"
    log.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    process.join()
    assert process.exitcode == (0 if die_at is None else -signal.SIGKILL)
    return steps_in([json.loads(line) for line in log.read_text().splitlines()])


def steps_in(rows: list[list[Any]]) -> Steps:
    """Sum the losses of each step's packs."""
    losses = [loss for _, loss in rows]
    steps = [sum(losses[at : at + BATCH]) for at in range(0, len(losses), BATCH)]
    return [pack for pack, _ in rows], steps


def _trained(train: Train, index: Index, folder: Path, resume: bool, die_at: int | None) -> None:
    from transformers import Trainer

    known, original = numbered(index), Trainer.training_step

    def noted(self: Any, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        pack = known[tuple(inputs["input_ids"][0].tolist())]
        loss = original(self, model, inputs, *rest, **options)
        with (folder / "micro-steps.jsonl").open("a") as file:
            file.write(f"{json.dumps([pack, float(loss)])}\n")
        if self.state.global_step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    Trainer.training_step = noted
    train(str(folder), resume)
