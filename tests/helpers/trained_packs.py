"""Text packs whose label counts differ a hundredfold, a tiny model, and processes to train it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.multiprocessing
from manifests import refresh
from small_packs import record, write_lengths
from tiny_models import fresh
from torch_packs import SyntheticEncode

from packidx.index import Index, open_index
from packidx.inspect.sql import open_database, open_target, rows_of
from packidx.plan import plan_packs
from packidx.torch import Pack, PackedDataset, PackSampler, collate
from packidx.torch.loss import LossWeights, packed_loss, seen_denominator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

CAPACITY = 240
BATCH = 8
"""Packs of a step."""


class Encode(SyntheticEncode):
    """Only the last ``record["trained"]`` tokens have labels."""

    def __init__(self) -> None:
        super().__init__(rope=None, types=False)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        encoded = super().__call__(record)
        labels = encoded["input_ids"].clone()
        labels[: len(labels) - record["trained"]] = -100
        return {**encoded, "labels": labels}


def text(seed: int, length: int, trained: int) -> dict[str, Any]:
    return record(seed, [length], trained=trained)


def trained_index(folder: Path, num_packs: int = 16, **options: Any) -> Index:
    """Packs of a sample or two with one label each, and packs of samples that are all labels."""
    few = [text(n, 110 + n % 7, 1) for n in range(num_packs)]
    many = [text(100 + n, 105 + n % 13, 100 + n % 5) for n in range(num_packs)]
    few += [text(200 + n, 236, 1 + n % 2) for n in range(num_packs // 4)]
    lengths = write_lengths(folder, {"few": few, "many": many})
    part = lengths / "part-00000.parquet"
    table = pq.read_table(part)
    counts = pa.array([one["trained"] for one in few + many], pa.int32())
    number = table.column_names.index("label_tokens")
    pq.write_table(table.set_column(number, table.schema.field(number), counts), part)
    refresh(lengths)
    options = {"capacity": CAPACITY, "group_by": "source"} | options
    plan_packs(lengths, folder / "index", **options)
    return open_index(folder / "index")


def tiny_model() -> Any:
    """Return Qwen3 with two layers, in float32, in training mode."""
    return fresh("qwen3").train()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name.removeprefix("module."): one.grad.clone() for name, one in named}


def largest_difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def one_loop(dataset: PackedDataset, name: str) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients and loss of step 0, whose packs one process reads one after the other."""
    model, weights, total = tiny_model(), LossWeights(name), 0.0
    packs = PackSampler(dataset.index, global_batch=BATCH).packs_of_step(0)
    batches = [collate(dataset[k]) for k in packs]
    denominator = seen_denominator(batches, weights)
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        loss = packed_loss(model(**inputs).logits, batch, weights, denominator)
        loss.backward()
        total += float(loss.detach())
    return gradients(model), total


def rows(index: Index, log: Path | str, query: str) -> list[dict[str, Any]]:
    """Return the answer to a query about an index and the log of a run."""
    question = open_target(f"{index.path}@{index.id}", {}, str(log))
    with open_database(question.views(query)) as connection:
        return rows_of(connection, query)


class Noting(PackedDataset):
    """Writes down which packs it was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[int] = []

    def __getitem__(self, k: Any) -> Pack:
        self.asked.append(int(k))
        return super().__getitem__(k)


def launch(function: Callable[..., None], world_size: int, *arguments: Any) -> None:
    """Run ``function(rank, *arguments)`` in `world_size` processes that may form a group.

    They come out of a server that has imported this module already: spawning eight interpreters
    that each import transformers would take a minute.
    """
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "transformers.trainer"])
    path = os.pathsep.join(sys.path)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path  # the server imports the modules by name
    try:
        torch.multiprocessing.start_processes(
            _rank,
            (function, world_size, _free_port(), *arguments),
            nprocs=world_size,
            start_method="forkserver",
        )
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _rank(rank: int, function: Callable[..., None], size: int, port: int, *arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    # What a user's process has; else each of its DataLoader workers would start a server again.
    torch.multiprocessing.set_start_method("fork", force=True)
    function(rank, *arguments)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
