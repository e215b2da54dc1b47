"""The losses of a run, by sample, kept beside its plan."""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.format.step_log import STEP_LOG, has_log, log_files, part_name
from packidx.io.files import atomic_file, make_folder
from packidx.torch.joining import IGNORE
from packidx.torch.loss import Batch, LossWeights, loss_targets, segment_numbers
from packidx.torch.sampler import PackSampler

_log = logging.getLogger("packidx.torch")

_SUMS = ("length", "attention_cost", "vision_patches", "vision_cost")
_SAMPLE = ("pack_id", "position", "sample_id", "label_tokens", "loss")


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
    its own. A file is written every `flush_steps` steps: a run that is killed loses what came
    after. `packidx sql INDEX --log DIR` reads it.

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
        self._writer = _Writer(self.folder, sampler, run, flush_steps)
        weakref.finalize(self, self._writer.flush)

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
        sampler = self.sampler
        packs = sampler.packs_of_step(step)[sampler.rank :: sampler.world_size]
        now = time.perf_counter()
        seconds = None if self._ended is None else now - self._ended
        self._ended = now
        if isinstance(grad_norm, Tensor):
            # Of FSDP2 it is a part of the number, which all ranks join here.
            whole = getattr(grad_norm, "full_tensor", None)
            grad_norm = (whole() if whole else grad_norm).detach()
        place = (sampler.epoch, step)
        self._writer.add(place, seconds, grad_norm, packs, self._batches)
        self._batches = []

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.flush()


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
    """Keep steps, and write every `flush_steps` of them as a file.

    Losses stay on their device until then, so that no step waits for them.
    """

    def __init__(
        self, folder: str, sampler: PackSampler, run: dict[str, Any], flush_steps: int
    ) -> None:
        self._folder, self._run, self._flush_steps = folder, run, flush_steps
        self._index, self._rank, self._ranks = sampler.index, sampler.rank, sampler.world_size
        self._session, self._part, self._last = time.time_ns(), 0, (-1, -1)
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        place: tuple[int, int],
        seconds: float | None,
        grad_norm: Tensor | float | None,
        packs: list[int],
        batches: list[tuple[Tensor, Tensor]],
    ) -> None:
        """Keep a step.

        Args:
            place: epoch and step.
            packs: of the rank.
            batches: of each, pack, position and sample id, int64 [n, 3]; label tokens and loss,
                float64 [n, 2].
        """
        if place <= self._last:  # the run went back: the later row holds
            self.flush()
            self._session = time.time_ns()
        self._last = place
        known: dict[str, Any] = {"session": self._session, "epoch": place[0], "step": place[1]}
        known |= {"rank": self._rank, "world_size": self._ranks, "seconds": seconds}
        kept = {"grad_norm": grad_norm, "packs": packs, "samples": batches}
        self._rows.append({**self._run, **known, **kept})
        if len(self._rows) == self._flush_steps:
            self.flush()

    def flush(self) -> None:
        """Write the steps that are not written yet."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            table = pa.Table.from_pylist(list(map(self._finished, rows)), STEP_LOG)
            path = os.path.join(self._folder, part_name(self._session, self._rank, self._part))
            with atomic_file(path) as file, pq.ParquetWriter(file, STEP_LOG) as writer:
                writer.write_table(table)
        except Exception as error:  # a full disk must not end the training
            _log.error("%d steps are not logged in %s: %s", len(rows), self._folder, error)
        self._part += 1

    def _finished(self, row: dict[str, Any]) -> dict[str, Any]:
        packs = [self._index.stats(number) for number in sorted(row.pop("packs"))]
        sums = {name: [pack[name] for pack in packs] for name in _SUMS}
        norm = row["grad_norm"]
        return {
            **row,
            **{name: None if None in each else sum(each) for name, each in sums.items()},
            "grad_norm": None if norm is None else float(norm),
            "samples": [each for batch in row["samples"] for each in _samples(*batch)],
        }


def _samples(named: Tensor, sums: Tensor) -> list[dict[str, Any]]:
    """Return the rows of a batch's samples with label tokens."""
    return [
        dict(zip(_SAMPLE, (*names, int(number), loss), strict=True))
        for names, (number, loss) in zip(named.tolist(), sums.tolist(), strict=True)
        if number
    ]
