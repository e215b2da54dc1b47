"""`pad_vision_to`: packs of few shapes, for layers that are compiled."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from small_packs import make_index, record
from torch_packs import SyntheticEncode

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import OptionError
from packidx.index import Index
from packidx.torch import PackedDataset, collate, prepare_model
from packidx.torch.dummies import DummyImages
from packidx.torch.sample import length_of

PATCHES, TOKENS = 256, 256


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


def test_patches_and_tokens_are_multiples(index: Index, whole_processors: Path) -> None:
    dataset = PackedDataset(index, whole_processors / "qwen2.5-vl", pad_vision_to=PATCHES)
    plain = PackedDataset(index, whole_processors / "qwen2.5-vl")
    assert any(not pack["num_images"] for pack in index.packs(["num_images"]).to_pylist())
    for padded, bare in zip(packs(dataset), packs(plain), strict=True):
        patches = len(padded["pixel_values"])
        assert patches == int(padded["image_grid_thw"].prod(-1).sum())
        assert patches % PATCHES == 0 < patches
        assert padded["input_ids"].shape[1] % TOKENS == 0
        assert padded["input_ids"].shape[1] <= 2048
        # Nothing is trained on but what was: the image stands behind the samples, unlabelled.
        trained = [each["labels"][each["labels"] != -100] for each in (padded, bare)]
        assert trained[0].equal(trained[1])


def test_what_cannot_be_padded_is_refused(
    tmp_path: Path, whole_processors: Path, index: Index
) -> None:
    with pytest.raises(OptionError, match="1036 patches, and the processor makes"):
        PackedDataset(index, whole_processors / "qwen2.5-vl", pad_vision_to=1024)
    with pytest.raises(OptionError, match="513 is not a multiple of the 4 patches"):
        PackedDataset(index, whole_processors / "qwen2.5-vl", pad_vision_to=513)
    bare = make_index(tmp_path, {"all": [record(0, [9])]}, capacity=64)
    encode = SyntheticEncode()
    with pytest.raises(OptionError, match="encoders that return image_grid_thw"):
        PackedDataset(bare, lambda r: encode(record(0, [9, (4, 4)])), pad_vision_to=8)


def test_two_images_are_not_longer_than_the_longest(whole_processors: Path) -> None:
    """Of 195 tokens a step, 197 are two images (a prime is too narrow for one), 198 are one."""
    dummies = DummyImages(ProcessorEncoder(whole_processors / "qwen2.5-vl"), None, None, 4 * 195)
    made = [dummies.filling(4 * (195 - tokens)) for tokens in (2, 3, 100, 194)]
    lengths = [length_of(sample) for sample in made if sample is not None]
    assert [len(sample["image_grid_thw"]) for sample in made if sample is not None] == [2, 1, 1, 1]
    assert dummies.largest() == max(lengths) == lengths[0] > lengths[1]


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
    dataset = PackedDataset(index, whole_processors / "qwen2.5-vl", pad_vision_to=PATCHES)
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
