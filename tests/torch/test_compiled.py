"""Compiled layers see few shapes."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)

from packidx import estimate_lengths, open_index, plan_packs
from packidx.index import Index
from packidx.torch import PackedDataset, collate, prepare_model

TOKENS = 256


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, corpus: Path, whole_processors: Path) -> Index:
    folder = tmp_path_factory.mktemp("padded")
    kinds = {"photos": 60, "vqa_multi_image": 60, "dialogues": 40}
    for name, number in kinds.items():
        with open(corpus / f"{name}.jsonl") as lines, open(folder / f"{name}.jsonl", "w") as file:
            file.writelines(itertools.islice(lines, number))
    estimate_lengths(
        str(folder),
        folder / "lengths",
        processor=whole_processors / "qwen2.5-vl",
        processor_settings={"images.max_pixels": 100352},
        media_root=corpus,
    )
    options: dict[str, Any] = {"reserve": 512, "pad_pack_to": TOKENS, "on_long": "split"}
    plan_packs(folder / "lengths", folder / "index", capacity=2048, **options)
    return open_index(folder / "index")


def packs(dataset: PackedDataset) -> Iterator[dict[str, Any]]:
    for k in range(len(dataset)):
        yield collate([dataset[k]])


@torch.library.custom_op("packidx_test::varlen", mutates_args=())
def varlen(query: torch.Tensor, bounds: torch.Tensor, longest: int) -> torch.Tensor:
    """What `torch.compile` sees of flash-attn's kernel: one call, whatever the bounds."""
    return query.transpose(1, 2).clone()


@varlen.register_fake
def _(query: torch.Tensor, bounds: torch.Tensor, longest: int) -> torch.Tensor:
    return query.transpose(1, 2).clone()


def flash(
    module: Any, query: torch.Tensor, key: Any, value: Any, mask: Any = None, **given: Any
) -> tuple[torch.Tensor, None]:
    return varlen(query, given["cu_seq_lens_q"], given["max_length_q"]), None


@pytest.mark.slow
def test_compiled_layers_make_few_graphs(index: Index, whole_processors: Path) -> None:
    from torch._dynamo.testing import CompileCounter
    from transformers import AttentionInterface

    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "train_tiny.py"))
    AttentionInterface.register("flash_attention_in_name", flash)
    dataset = PackedDataset(index, whole_processors / "qwen2.5-vl", dummy_image=True)
    batches = [{**batch, "labels": None} for batch in packs(dataset)]
    graphs = {}
    for tower, steps in (("flash_attention_in_name", 50), ("sdpa", 6)):
        torch._dynamo.reset()
        model = prepare_model(example["build_model"]()).eval().model
        model.visual.config._attn_implementation = tower
        counters = []
        for layers in (model.language_model.layers, model.visual.blocks):
            counters.append(CompileCounter())
            for layer in layers:
                layer.compile(backend=counters[-1])
        with torch.no_grad():
            for batch in itertools.islice(itertools.cycle(batches), steps):
                model(**batch)
        graphs[tower] = [counter.frame_count for counter in counters]
    text, vision = graphs["flash_attention_in_name"]
    assert len({batch["input_ids"].shape[1] for batch in batches}) > 1
    assert len({len(batch["pixel_values"]) for batch in batches}) > 4
    assert 1 <= text <= 4 and 1 <= vision <= 4
    # sdpa's towers go from image to image, a graph for each number of them (docs/training.md).
    assert graphs["sdpa"][1] > 4
