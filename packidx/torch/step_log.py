"""The losses of a run, by sample, kept beside its plan."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.format.index import IndexManifest
from packidx.format.schema import Pack
from packidx.format.step_log import STEP_LOG, has_log, log_files, part_name
from packidx.index import Index, open_index
from packidx.index.order import Dealing, Epochs
from packidx.io.files import atomic_file, make_folder
from packidx.torch.joining import IGNORE
from packidx.torch.loss import Batch, LossWeights, loss_targets, segment_numbers
from packidx.torch.reader import is_exact
from packidx.torch.sampler import PackSampler

_log = logging.getLogger("packidx.torch")

_SUMS = ("length", "attention_cost", "vision_patches", "vision_cost")
_STOP = None


class _Step(NamedTuple):
    """What a rank's step was, on its way to the thread that writes."""

    epoch: int
    step: int
    seconds: float | None
    grad_norm: Tensor | float | None
    batches: list[Tensor]
    """Of each batch, float64 [3, segments]: tokens, label tokens and loss."""


class StepLog:
    """Keeps each sample's loss of each step, and the step's time and gradient norm, in a folder.

        log = StepLog("runs/log", sampler)
        ...
        loss = packed_loss(logits, batch, weights, denominator, log=log.add)  # in every micro-step
        log.end_step(step, grad_norm)  # after the last one
        ...
        log.close()

    Which sample a loss is of follows from the sampler's order: a batch holds no ids. The lengths
    and label tokens of what was trained are compared with the plan's; where samples were left out,
    those of which it cannot be told which sample they are have none (null), and so have all of
    packs that hold something else than planned.

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
        self._batches: list[Tensor] = []
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
            batch: what `collate` returned.
            losses: float [B, T] as ``cross_entropy(..., reduction="none")`` of `loss_targets`
                gives them, or [n] of the n label tokens alone.

        Raises:
            MismatchError: there are more or fewer of them.
        """
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
        sums = losses.new_zeros(3, segments.numel(), dtype=torch.float64)
        sums[0].index_add_(0, segments.flatten(), (~_padding(batch)).flatten().double())
        sums[1].index_add_(0, mine, torch.ones_like(mine, dtype=torch.float64))
        sums[2].index_add_(0, mine, losses.double())
        self._batches.append(sums)

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
    """Tells the samples of each step, and writes parts; all of it in the thread."""

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
        read = {number: index.pack(number) for number in sorted(numbers.tolist())}
        packs = [read[number] for number in numbers.tolist()]
        sums = {name: [pack.stats[name] for pack in packs] for name in _SUMS}
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
            "samples": _samples(packs, step.batches, index.snapshot),
        }

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        path = os.path.join(self._folder, part_name(self._session, self._rank, self._part))
        with atomic_file(path) as file, pq.ParquetWriter(file, STEP_LOG) as writer:
            writer.write_table(pa.Table.from_pylist(rows, STEP_LOG))
        self._part += 1


def _padding(batch: Batch) -> Tensor:
    """Which tokens a batch says are padding, bool [B, T]: there it may belong to a sample's segment
    (`segment_numbers`), also that at the end of a row."""
    labels, mask = batch["labels"], batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == labels.shape:
        return mask == 0
    padding: Tensor = batch.get("padding_mask", torch.zeros_like(labels, dtype=torch.bool))
    return padding


def _samples(
    packs: list[Pack], batches: list[Tensor], snapshot: IndexManifest
) -> list[dict[str, Any]]:
    """A row's `samples`: those with label tokens of a step's batches, which hold `packs`."""
    seen = torch.cat([torch.zeros(3, 0, dtype=torch.float64), *(each.cpu() for each in batches)], 1)
    tokens, labels, losses = seen[:, seen[1] > 0].tolist()
    slots = [snapshot.options.padded(int(number)) for number in tokens]
    planned = [sample for pack in packs for sample in pack.samples if sample.label_tokens != 0]
    places = certain_places(
        list(zip(slots, labels, strict=True)),
        [(sample.padded_length or sample.length, sample.label_tokens) for sample in planned],
        may_lack=is_exact(snapshot),
    )
    rows = []
    for place, number, loss in zip(places, labels, losses, strict=True):
        row: dict[str, Any] = {"label_tokens": int(number), "loss": loss}
        if place is not None:
            names = ("pack_id", "position", "sample_id")
            row |= {name: getattr(planned[place], name) for name in names}
        rows.append(row)
    return rows


def certain_places(seen: Sequence[Any], planned: Sequence[Any], may_lack: bool) -> list[int | None]:
    """Which of `planned` each of `seen` is, None where more than one could be.

    What was seen is the plan, in its order, without what was left out. If the first place at which
    each can stand is also the last one, it stands there.

    Args:
        may_lack: whether some may be left out; else all are None if the two are not equal.
    """
    nowhere: list[int | None] = [None] * len(seen)
    if not may_lack and len(seen) != len(planned):
        return nowhere
    first = _first_places(seen, planned)
    last = _first_places(seen[::-1], planned[::-1])
    if first is None or last is None:
        return nowhere
    pairs = zip(first, (len(planned) - 1 - place for place in reversed(last)), strict=True)
    return [place if place == other else None for place, other in pairs]


def _first_places(seen: Sequence[Any], planned: Sequence[Any]) -> list[int] | None:
    """The first place in `planned` of each of `seen`, one behind the other; None without one."""
    places, at = [], 0
    for each in seen:
        while at < len(planned) and planned[at] != each:
            at += 1
        if at == len(planned):
            return None
        places.append(at)
        at += 1
    return places
