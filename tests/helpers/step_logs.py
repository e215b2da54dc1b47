"""Tiny runs that keep a log, and questions to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from trained_packs import Encode

from packidx.index import Index
from packidx.inspect.sql import asked, connect, rows_of
from packidx.records.fetch import Fetcher
from packidx.torch import PackedDataset, PackSampler, StepLog, collate
from packidx.torch.loss import LossWeights, packed_loss


def logged(
    log: StepLog,
    dataset: PackedDataset,
    model: Any,
    steps: range,
    together: int = 1,
    attention: str = "sdpa",
) -> None:
    """Run `steps` of the log's rank, `together` packs at a time, without training."""
    sampler = log.sampler
    for step in steps:
        packs = sampler.packs_of_step(step)[sampler.rank :: sampler.world_size]
        for start in range(0, len(packs), together):
            held = [dataset[k] for k in packs[start : start + together]]
            batch = collate(held, attention, sample_table=True)
            inputs = {k: v for k, v in batch.items() if k not in ("labels", "sample_table")}
            with torch.no_grad():
                logits = model(**inputs).logits
            packed_loss(logits, batch, LossWeights(), 1.0, log=log.add)
        log.end_step(step, torch.tensor(1.0 + step))


def rows(index: Index, log: Path | str, query: str) -> list[dict[str, Any]]:
    question = asked(f"{index.path}@{index.id}", {}, str(log))
    with connect(question.views(query)) as connection:
        return rows_of(connection, query)


def alone(index: Index, model: Any, samples: list[int]) -> dict[int, float]:
    """The loss sums of samples, each by itself: nothing of packidx.torch."""
    fetcher, encode, losses = Fetcher(index), Encode(), {}
    packs = [index.pack(k) for k in range(index.num_packs)]
    for sample in (each for pack in packs for each in pack.samples):
        if sample.sample_id in samples:
            encoded = encode(fetcher.read(sample))
            with torch.no_grad():
                logits = model(encoded["input_ids"][None], use_cache=False).logits[0, :-1]
            loss = functional.cross_entropy(logits, encoded["labels"][1:], reduction="sum")
            losses[sample.sample_id] = float(loss)
    return losses


def sampler_of(index: Index, **options: Any) -> PackSampler:
    return PackSampler(index, **({"global_batch": 4} | options))
