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
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from manifests import refresh
from small_packs import record, write_lengths
from torch_packs import VOCABULARY, SyntheticEncode

from packidx.index import Index, open_index
from packidx.plan import plan_packs
from packidx.torch import Pack, PackedDataset, PackSampler
from packidx.torch.loss import LossWeights

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

CAPACITY = 240


class Encode(SyntheticEncode):
    """Only the last ``record["trained"]`` tokens have labels."""

    def __init__(self) -> None:
        super().__init__(rope=None, types=False)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        encoded = super().__call__(record)
        labels = encoded["input_ids"].clone()
        labels[: len(labels) - record["trained"]] = -100
        return {**encoded, "labels": labels}


def planned_denominator(sampler: PackSampler, step: int, name: str = "token") -> float:
    """Σ n · w(n) over the samples of a step, of the n label tokens that the plan has for each."""
    packs = map(sampler.index.pack, sampler.packs_of_step(step))
    return LossWeights(name).total([s.label_tokens or 0 for pack in packs for s in pack.samples])


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
    """Qwen3 with two layers, float32, every weight large enough to matter."""
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    model = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15, generator=generator)
    return model.train()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name.removeprefix("module."): one.grad.clone() for name, one in named}


def largest_difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


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
