"""What a log of losses by sample costs a training step: steps with a `StepLog`, and without.

A tiny Qwen2.5-VL trains on packs of the corpus on the CPU, one pack a step. All that the log does
is timed by itself, the thread that writes included, and counted as if it ran beside nothing: on a
machine with other work the difference of two steps says nothing below a few percent.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from torch import Tensor

from bench_tools import heading, line, ratio
from packidx import open_index
from packidx.torch import PackedDataset, PackSampler, StepLog, collate, prepare_model
from packidx.torch.loss import LossWeights, label_positions, packed_loss

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

STEPS, WARM = 5, 1


def main(data: Path) -> None:
    """Print the ratio over steps on packs of the index in `data`."""
    from train_tiny import build_model

    index = open_index(data / "index")
    dataset = PackedDataset(index, data / "processors" / "qwen2.5-vl")
    sampler, model = PackSampler(index, global_batch=1), prepare_model(build_model())
    packs = [sampler.packs_of_step(step)[0] for step in range(STEPS)]
    steps, own = np.zeros(STEPS), np.zeros(STEPS)
    with tempfile.TemporaryDirectory() as folder:
        log = StepLog(folder, sampler, flush_steps=10)
        for step, pack in enumerate(packs):
            batch = collate(dataset[pack], sample_table=True)
            begin = time.perf_counter()
            kept = label_positions(batch)
            inputs = {k: v for k, v in batch.items() if k not in ("labels", "sample_table")}
            logits = model(**inputs, logits_to_keep=kept).logits
            losses: list[Tensor] = []
            weights, note = LossWeights(), lambda _, each, to=losses: to.append(each)
            packed_loss(logits, batch, weights, 1.0, kept=kept, log=note).backward()
            model.zero_grad()
            steps[step] = time.perf_counter() - begin
            begin = time.perf_counter()
            log.add(batch, losses[0])
            log.end_step(step, 1.0)
            own[step] = time.perf_counter() - begin
        log.close()
        again = StepLog(folder, sampler, flush_steps=10)
        begin = time.perf_counter()
        for step in range(STEPS):
            again.end_step(step)
        again.close()
        writing = (time.perf_counter() - begin) / STEPS
    alone, mine = np.median(steps[WARM:]), np.median(own[WARM:])
    heading(f"{STEPS} steps of a tiny model, each a pack of 8,192 tokens, on the CPU: with a log")
    ratio("step and all work of its log / step", alone + mine + writing, alone, at_most=1.01)
    line("    in the thread that trains", f"{1000 * mine:.2f} ms a pack")
    line("    in the thread that writes", f"{1000 * writing:.2f} ms a pack")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
