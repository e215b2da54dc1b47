"""Megatron-Bridge's own sampler, loader, batch function and loss, on packs of its provider.

Its models need Transformer Engine, which needs CUDA: the packages of models and of adapters are
stood in for, and a tiny model of transformers takes what Bridge's step would give to its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)

pytest.importorskip("megatron.core", exc_type=ImportError)


class StoodIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any class of these packages is an empty one."""

    names = ("megatron.bridge.models", "megatron.bridge.peft")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.startswith(self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        class Module(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


spec = importlib.util.find_spec("megatron.bridge")
if spec is None:
    pytest.skip("megatron.bridge is not installed", allow_module_level=True)
bridge = types.ModuleType("megatron.bridge")  # whose own __init__ imports all models
bridge.__path__ = list(spec.submodule_search_locations or ())
sys.modules["megatron.bridge"] = bridge
sys.meta_path.insert(0, StoodIn())

import trainer_packs as real  # noqa: E402
from megatron.bridge.data.samplers import build_pretraining_data_loader  # noqa: E402
from megatron.bridge.training.config import DatasetBuildContext  # noqa: E402
from megatron.bridge.training.losses import masked_next_token_loss  # noqa: E402
from megatron.bridge.training.vlm_step import get_batch  # noqa: E402
from tiny_models import fresh  # noqa: E402

from packidx.index import Index  # noqa: E402
from packidx.trainers.megatron_bridge import PackedProvider  # noqa: E402


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.texts(tmp_path_factory.mktemp("bridge"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return real.pictures(tmp_path_factory.mktemp("seen"))


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **options: self)


def provider_of(index: Index) -> PackedProvider:
    return PackedProvider(
        index=index.path,
        encode=real.Encode(),
        global_batch=real.BATCH,
        seq_length=real.CAPACITY,
        num_workers=0,
    )


def loader_of(index: Index, rank: int, size: int, micro: int, consumed: int = 0) -> Any:
    """As Bridge makes it of the provider: trains for as many steps as two epochs have."""
    provider = provider_of(index)
    samples = len(real.ordered(index))
    data, *others = provider.build_datasets(DatasetBuildContext(samples, 0, 0))
    assert others == [None, None] and len(data) == samples
    return build_pretraining_data_loader(
        data,
        consumed,
        provider.dataloader_type,
        micro,
        provider.num_workers,
        provider.data_sharding,
        collate_fn=data.collate_fn,
        pin_memory=False,
        data_parallel_rank=rank,
        data_parallel_size=size,
    )


def packs_in(index: Index, batches: Any) -> list[int]:
    """Numbers of the packs that batches of one pack each hold."""
    rows = (row[mask] for row, mask in map(flat, batches))
    return real.numbers_of(index, rows)


def flat(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = (batch["tokens"] != 0).sum(dim=1)  # no token of these samples is 0
    inside = torch.arange(batch["tokens"].shape[1]) < lengths[:, None]
    return batch["tokens"].flatten(), inside.flatten()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_its_sampler_gives_the_packs_in_order(pictures: Index, world_size: int) -> None:
    for rank in range(world_size):
        found = packs_in(pictures, loader_of(pictures, rank, world_size, 1))
        assert found == real.packs_of(pictures, rank, world_size)


def test_consumed_samples_resume(pictures: Index) -> None:
    done = 7 * real.BATCH
    found = packs_in(pictures, loader_of(pictures, 0, 1, 1, done))
    assert found == real.packs_of(pictures, 0, 1)[done:]


def batches_of(index: Index) -> Iterator[tuple[Any, ...]]:
    """What Bridge's VLM step makes of micro-batches of two packs, packed by itself."""
    group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups, config = (
        SimpleNamespace(pp=group, cp=group),
        SimpleNamespace(dataset=provider_of(index), model=SimpleNamespace(seq_length=4096)),
    )
    batches = iter(loader_of(index, 0, 1, 2))
    for _ in range(real.STEPS * real.BATCH // 2):
        yield get_batch(batches, config, pg_collection=groups)


def test_its_step_packs_the_samples_of_the_packs(pictures: Index) -> None:
    packs, seen = real.ordered(pictures), 0
    for number, (tokens, labels, mask, _, positions, bounds, _, media) in enumerate(
        islice(batches_of(pictures), 6)
    ):
        both = [packs[2 * number].joined(), packs[2 * number + 1].joined()]
        assert tokens[0].tolist() == torch.cat([pack["input_ids"] for pack in both]).tolist()
        starts = torch.cat([pack["cu_seqlens"][:-1] for pack in both])
        starts[len(both[0]["cu_seqlens"]) - 1 :] += both[0]["cu_seqlens"][-1]
        assert bounds[:-1].tolist() == starts.tolist()
        assert torch.nonzero(positions[0] == 0)[:, 0].tolist() == starts.tolist()
        wanted = torch.cat([pack["labels"] for pack in both])
        assert labels[0, :-1].tolist() == wanted[1:].tolist()
        assert torch.equal(mask.bool(), labels != -100)
        pixels = [pack["pixel_values"] for pack in both if "pixel_values" in pack]
        assert (media is None) == (not pixels)
        assert media is None or torch.equal(media.pixel_values, torch.cat(pixels))
        seen += len(pixels)
    assert seen


def test_the_losses_of_its_batches_are_those_of_plain_pytorch(texts: Index) -> None:
    model = fresh("qwen3").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, batches = [], batches_of(texts)
    for _ in range(real.STEPS):
        parts = []
        for tokens, labels, mask, _, positions, *_ in islice(batches, real.BATCH // 2):
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
            each = torch.nn.functional.cross_entropy(
                logits[0].float(), labels[0], reduction="none", ignore_index=-100
            )
            parts.append(masked_next_token_loss(mask, each, check_for_nan_in_loss=False)[:2])
        tokens = sum(int(number) for _, number in parts)
        for loss, _ in parts:
            (loss / tokens).backward()
        losses.append(sum(float(loss.detach()) for loss, _ in parts) / tokens)
        optimizer.step()
        optimizer.zero_grad()
    plain = real.plain_losses(texts, fresh("qwen3").train(), texts_only=True)
    assert losses == pytest.approx(plain, abs=1e-5)
