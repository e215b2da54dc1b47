"""What the tests of trainers share: packs of a tiny model, and a plain loop to compare with.

`make test-trainers` puts the trainers' packages on Python's path; where one cannot be imported its
tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
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
