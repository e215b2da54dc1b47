"""Runs of trainers that derive from the Trainer: their packs and losses, killed, resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import trainer_packs as real

from packidx.index import Index

SAVED, KILLED = 10, 13  # steps after which a run has a checkpoint, and dies

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": real.BATCH,
    "max_steps": real.STEPS,
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
"""`TrainingArguments` of a run like that of `real.plain_losses`."""

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
    assert packs == real.packs_of(index, 0, 1)[: len(packs)]
    assert losses == pytest.approx(real.plain_losses(index, real.model_of()), abs=1e-5)
    assert losses[-1] < losses[0]
    run(folder / "killed", False, KILLED)
    again, rest = run(folder / "killed", True, None)
    assert again == packs[SAVED * real.BATCH :]
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
    steps = [sum(losses[at : at + real.BATCH]) for at in range(0, len(losses), real.BATCH)]
    return [pack for pack, _ in rows], steps


def _trained(train: Train, index: Index, folder: Path, resume: bool, die_at: int | None) -> None:
    from transformers import Trainer

    known, original = real.numbered(index), Trainer.training_step

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
