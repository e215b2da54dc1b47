"""The losses of a run, by sample, kept beside its plan."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from packidx.errors import MismatchError, OptionError
from packidx.format.step_log import STEP_LOG, last_session, log_files, log_parts, part_name
from packidx.io.files import atomic_file, make_folder
from packidx.torch.joining import IGNORE
from packidx.torch.loss import Batch, LossWeights, loss_targets, segment_numbers
from packidx.torch.sampler import PackSampler

Loader = TypeVar("Loader", bound=Iterable[Any])

_log = logging.getLogger("packidx.torch")

_SUMS = ("length", "attention_cost", "vision_patches", "vision_cost")
_PACK = ("pack_id", "padded_length", "vision_patches", "num_samples")
_SAMPLE = ("pack_id", "position", "sample_id", "label_tokens", "loss")


class StepLog:
    """Keep each sample's loss, and each step's time, memory and gradient norm, in a folder.

        log = StepLog("runs/log", sampler)
        loader = log.watch(DataLoader(..., collate_fn=partial(collate, sample_table=True)))
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
        memory: returns the peak memory since it was called last, in bytes; None takes that of
            torch's allocator on the current CUDA device, where there is one.

    Raises:
        MismatchError: the folder has the log of a run with another seed or global batch.
        OptionError: `flush_steps` is below 1, or the folder cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        sampler: PackSampler,
        flush_steps: int = 100,
        memory: Callable[[], int | None] | None = None,
    ) -> None:
        if flush_steps < 1:
            raise OptionError(f"flush_steps is {flush_steps}: it must be at least 1")
        self.folder, self.sampler = os.fspath(folder), sampler
        make_folder(self.folder)
        run = {"snapshot_id": sampler.index.id, "seed": sampler.seed}
        run["global_batch"] = sampler.global_batch
        if log_parts(self.folder):
            last = pq.read_table(log_files(self.folder)[-1], columns=[*run])
            (before,) = last.slice(0, 1).to_pylist()
            other = [name for name in run if before[name] != run[name]]
            if other and before["snapshot_id"] == run["snapshot_id"]:
                name = other[0]
                raise MismatchError(
                    f"{self.folder} has the log of a run with {name} {before[name]}, this one has"
                    f" {run[name]}: give each run a folder of its own"
                )
        self._run, self._flush_steps = run, flush_steps
        self._session, self._part, self._last = self._new_session(), 0, (-1, -1)
        self._ended: float | None = None
        self._memory = _cuda_peak if memory is None else memory
        self._latest: dict[str, Any] = {}
        self._waited: float | None = None  # seconds of this step, None without `watch`
        # Losses stay on their device until a file is written, so that no step waits for them.
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._rows: list[dict[str, Any]] = []
        atexit.register(self.close)

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

    def watch(self, loader: Loader) -> WatchedLoader[Loader]:
        """Return `loader` with the time measured that a step waits for its batches."""
        return WatchedLoader(loader, self)

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
        if place <= self._last:  # the run went back: the later row holds
            self.close()
            self._session = self._new_session()
        self._last = place
        row: dict[str, Any] = {"session": self._session, "epoch": sampler.epoch, "step": step}
        row |= {"rank": sampler.rank, "world_size": sampler.world_size}
        row |= {"seconds": seconds, "grad_norm": grad_norm, "memory": self._memory()}
        waited, self._waited = self._waited, None
        if waited is not None and seconds:
            row["data_wait"] = min(1.0, waited / seconds)
        self._latest = row
        self._rows.append({**self._run, **row, "packs": packs, "samples": self._batches})
        self._batches = []
        if len(self._rows) == self._flush_steps:
            self.close()

    def metrics(self) -> str:
        """Return the step that ended last as Prometheus text, a gauge a line."""
        named = {"step": "step", "seconds": "step_seconds", "data_wait": "data_wait_ratio"}
        named |= {"memory": "memory_peak_bytes"}
        known = {named[key]: self._latest.get(key) for key in named}
        return "".join(
            f'packidx_{name}{{rank="{self.sampler.rank}"}} {value}\n'
            for name, value in known.items()
            if value is not None
        )

    def close(self) -> None:
        """Write the steps that are not written yet."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            table = pa.Table.from_pylist(list(map(self._finish_step, rows)), STEP_LOG)
            name = part_name(self._session, self.sampler.rank, self._part)
            path = os.path.join(self.folder, name)
            with (
                atomic_file(path) as file,
                pq.ParquetWriter(file, STEP_LOG, write_page_checksum=True) as writer,
            ):
                writer.write_table(table)
        except Exception as error:  # a full disk must not end the training
            _log.error("%d steps are not logged in %s: %s", len(rows), self.folder, error)
        self._part += 1

    def note_wait(self, seconds: float) -> None:
        """Add `seconds` to what this step has waited for data; `watch` does it."""
        self._waited = (self._waited or 0.0) + seconds

    def _new_session(self) -> int:
        """Return a number above that of every session in the folder, whatever the clock says."""
        return max(time.time_ns(), last_session(self.folder) + 1)

    def _finish_step(self, row: dict[str, Any]) -> dict[str, Any]:
        packs = [self.sampler.index.stats(number) for number in sorted(row.pop("packs"))]
        sums = {name: [pack[name] for pack in packs] for name in _SUMS}
        counts = [{name: pack[name] for name in _PACK} for pack in packs]
        norm = row["grad_norm"]
        samples = [
            dict(zip(_SAMPLE, (*names, int(number), loss), strict=True))
            for named, sums_of in row["samples"]
            for names, (number, loss) in zip(named.tolist(), sums_of.tolist(), strict=True)
            if number
        ]
        return {
            **row,
            **{name: None if None in each else sum(each) for name, each in sums.items()},
            "grad_norm": None if norm is None else float(norm),
            "packs": counts,
            "samples": samples,
        }


class WatchedLoader(Generic[Loader]):
    """A loader whose waiting a `StepLog` counts; it has all attributes of the loader."""

    def __init__(self, loader: Loader, log: StepLog) -> None:
        self.loader, self.log = loader, log

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.log.note_wait(time.perf_counter() - began)
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def _cuda_peak() -> int | None:
    """Return the most memory that torch has allocated since the last call, in bytes."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak
