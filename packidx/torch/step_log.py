"""The losses of a run, by sample, kept beside its plan."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.format.step_log import STEP_LOG, has_log, log_files, part_name
from packidx.index import Index, open_index
from packidx.index.order import Dealing, Epochs
from packidx.io.files import atomic_file, make_folder
from packidx.torch.joining import IGNORE
from packidx.torch.loss import Batch, LossWeights, loss_targets, segment_numbers
from packidx.torch.sampler import PackSampler

_log = logging.getLogger("packidx.torch")

_SUMS = ("length", "attention_cost", "vision_patches", "vision_cost")
_SAMPLE = ("pack_id", "position", "sample_id", "label_tokens", "loss")
_STOP = None


class _Step(NamedTuple):
    """What a rank's step was, on its way to the thread that writes."""

    epoch: int
    step: int
    seconds: float | None
    grad_norm: Tensor | float | None
    batches: list[tuple[Tensor, Tensor]]
    """Of each batch: pack, position and sample id, int64 [n, 3]; label tokens and loss, float64
    [n, 2]."""


class StepLog:
    """Keep each sample's loss, and each step's time and gradient norm, in a folder.

        log = StepLog("runs/log", sampler)
        loader = DataLoader(..., collate_fn=partial(collate, sample_table=True))
        ...  # the model takes all of the batch but "labels", "shift_labels" and "sample_table"
        loss = packed_loss(logits, batch, weights, denominator, log=log.add)  # in every micro-step
        log.end_step(step, grad_norm)  # after the last one
        ...
        log.close()

    The batch's ``sample_table`` says which sample a loss belongs to.

    All ranks may write into one folder; a run that resumes goes on in it. Each run has a folder of
    its own. Files are written by a thread, every `flush_steps` steps: a run that is killed loses
    what came after. `packidx sql INDEX --log DIR` reads it.

    Args:
        folder: made if it is not there.
        sampler: of this rank; a loop that has none gives one that says how it deals packs.
        flush_steps: steps of one file.

    Raises:
        MismatchError: the folder has the log of a run with another seed or global batch.
        OptionError: `flush_steps` is below 1, or the folder cannot be made.
    """

    def __init__(
        self, folder: str | os.PathLike[str], sampler: PackSampler, flush_steps: int = 100
    ) -> None:
        if flush_steps < 1:
            raise OptionError(f"flush_steps is {flush_steps}: it must be at least 1")
        self.folder, self.sampler = os.fspath(folder), sampler
        make_folder(self.folder)
        run = {
            "snapshot_id": sampler.index.id,
            "seed": sampler.seed,
            "global_batch": sampler.global_batch,
        }
        _check_run(self.folder, run)
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._ended: float | None = None
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        writer = _Writer(self.folder, sampler, run)
        thread = threading.Thread(
            target=writer.run, args=(self._steps, flush_steps), name="packidx-step-log", daemon=True
        )
        thread.start()
        self._finish = weakref.finalize(self, _finish, self._steps, thread)

    def add(self, batch: Batch, losses: Tensor) -> None:
        """Note the losses of a micro-step's label tokens; `packed_loss` does it with ``log=``.

        Args:
            batch: what `collate` returned with ``sample_table=True``.
            losses: float [B, T] as ``cross_entropy(..., reduction="none")`` of `loss_targets`
                gives them, or [n] of the n label tokens alone.

        Raises:
            MismatchError: there are more or fewer of them, or the batch has no table.
        """
        if "sample_table" not in batch:
            raise MismatchError(
                "the batch has no sample_table, which names the samples of its losses: collate"
                " with sample_table=True"
            )
        targets, _ = loss_targets(batch, LossWeights())
        chosen = targets != IGNORE
        segments = segment_numbers(batch)
        mine = segments[chosen]  # a first label is masked: a place predicts one of its own segment
        losses = losses.detach()
        if losses.shape == chosen.shape:
            losses = losses[chosen]
        if losses.shape != mine.shape:
            raise MismatchError(
                f"losses of shape {list(losses.shape)} are not of a batch of shape"
                f" {list(chosen.shape)} with {len(mine)} label tokens: give one for each position"
            )
        each = torch.stack([torch.ones_like(losses), losses], 1).double()
        sums = each.new_zeros(segments.numel(), 2).index_add_(0, mine, each)
        table = batch["sample_table"].to(segments.device)
        self._batches.append((table[:, 1:], sums[segments.flatten()[table[:, 0]]]))

    def end_step(self, step: int, grad_norm: Tensor | float | None = None) -> None:
        """Log a step; its time is that since the end of the one before.

        Args:
            step: of the sampler's epoch, from 0.
            grad_norm: if it is known.

        Raises:
            OptionError: the epoch has no such step.
        """
        if not 0 <= step < self.sampler.num_steps:
            raise OptionError(f"step {step} is outside [0, {self.sampler.num_steps})")
        now = time.perf_counter()
        seconds = None if self._ended is None else now - self._ended
        self._ended = now
        if isinstance(grad_norm, Tensor):
            # Of FSDP2 it is a part of the number, which all ranks join here and in no thread.
            whole = getattr(grad_norm, "full_tensor", None)
            grad_norm = (whole() if whole else grad_norm).detach()
        self._steps.put(_Step(self.sampler.epoch, step, seconds, grad_norm, self._batches))
        self._batches = []

    def close(self) -> None:
        """Write what is not written yet."""
        self._finish()


def _finish(steps: queue.SimpleQueue[_Step | None], thread: threading.Thread) -> None:
    steps.put(_STOP)
    thread.join()


def _check_run(folder: str, run: dict[str, Any]) -> None:
    """Refuse a folder with another run of the same snapshot, whose steps are others."""
    if not has_log(folder):
        return
    [before] = pq.read_table(log_files(folder)[-1], columns=[*run]).slice(0, 1).to_pylist()
    differing = [name for name in run if before[name] != run[name]]
    if differing and before["snapshot_id"] == run["snapshot_id"]:
        name = differing[0]
        raise MismatchError(
            f"{folder} has the log of a run with {name} {before[name]}, this one has {run[name]}:"
            " give each run a folder of its own"
        )


class _Writer:
    """Write the parts of a log, in a thread of its own."""

    def __init__(self, folder: str, sampler: PackSampler, run: dict[str, Any]) -> None:
        index = sampler.index
        self._folder, self._run = folder, run
        self._opened = (f"{index.path}@{index.id}", index.roots)
        self._rank, self._world_size = sampler.rank, sampler.world_size
        self._session, self._part, self._last = time.time_ns(), 0, (-1, -1)

    def run(self, steps: queue.SimpleQueue[_Step | None], flush_steps: int) -> None:
        """Write what comes, until nothing comes any more."""
        rows: list[dict[str, Any]] = []
        try:
            index = open_index(*self._opened)  # the reader's own: nothing of it is shared
            while (step := steps.get()) is not None:
                rows.append(self._row(index, step))
                if len(rows) == flush_steps:
                    self._write(rows)
                    rows = []
            self._write(rows)
        except Exception as error:  # a full disk must not end the training
            _log.error("no more steps are logged in %s: %s", self._folder, error)
            while steps.get() is not _STOP:  # of what nobody takes memory runs full
                pass

    def _row(self, index: Index, step: _Step) -> dict[str, Any]:
        global_batch, epochs = self._run["global_batch"], Epochs.of(index.snapshot)
        dealing = Dealing(epochs.order(index.id, self._run["seed"], step.epoch), global_batch)
        first = step.step * global_batch
        if (step.epoch, step.step) <= self._last:  # the run went back: what comes now holds
            self._session = time.time_ns()
        self._last = (step.epoch, step.step)
        numbers = dealing.packs_of_rank(first, first + global_batch, self._rank, self._world_size)
        packs = [index.pack(number).stats for number in sorted(numbers.tolist())]
        sums = {name: [pack[name] for pack in packs] for name in _SUMS}
        return {
            **self._run,
            "session": self._session,
            "epoch": step.epoch,
            "step": step.step,
            "rank": self._rank,
            "world_size": self._world_size,
            "seconds": step.seconds,
            "grad_norm": None if step.grad_norm is None else float(step.grad_norm),
            **{name: None if None in each else sum(each) for name, each in sums.items()},
            "samples": [row for batch in step.batches for row in _samples(*batch)],
        }

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        path = os.path.join(self._folder, part_name(self._session, self._rank, self._part))
        with atomic_file(path) as file, pq.ParquetWriter(file, STEP_LOG) as writer:
            writer.write_table(pa.Table.from_pylist(rows, STEP_LOG))
        self._part += 1


def _samples(named: Tensor, sums: Tensor) -> list[dict[str, Any]]:
    """Return the rows of a batch's samples with label tokens."""
    return [
        dict(zip(_SAMPLE, (*names, int(number), loss), strict=True))
        for names, (number, loss) in zip(named.tolist(), sums.tolist(), strict=True)
        if number
    ]
