"""The pixels of a pack lie in one piece of memory, and are not copied on their way to the model."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from processors import FEW_RANKS, qwen_folders
from torch.utils.data import DataLoader
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError
from packidx.torch import Pack, PackedDataset, collate, normalise_pixels, prepare_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)["qwen2.5-vl"]


@pytest.fixture(scope="module")
def index(corpus: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pixels")
    with open(corpus / "vqa_multi_image.jsonl") as lines:
        (out / "some.jsonl").write_text("".join(islice(lines, 200)))
    given: dict[str, Any] = {"processor": str(folder), "media_root": corpus, "workers": 1}
    estimate_lengths(str(out / "some.jsonl"), out / "lengths", **given)
    plan_packs(out / "lengths", out / "index", capacity=2048)
    return out / "index"


def plain(folder: Path) -> Any:
    """An encoder that writes into no memory but its own."""
    encode = ProcessorEncoder(folder)
    return lambda record: encode(record)


def lie_together(pack: Pack) -> bool:
    pixels = [sample["pixel_values"] for sample in pack.samples if "pixel_values" in sample]
    return len({each.untyped_storage().data_ptr() for each in pixels}) == 1 < len(pixels)


def test_a_pack_is_joined_without_a_copy(index: Path, folder: Path) -> None:
    pack, other = (
        PackedDataset(index, ProcessorEncoder(folder))[0],
        PackedDataset(index, plain(folder))[0],
    )
    assert lie_together(pack)
    assert not lie_together(other)
    batch, expected = collate(pack), collate(other)
    assert batch["pixel_values"].data_ptr() == pack.samples[0]["pixel_values"].data_ptr()
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(value, batch[key])


def test_what_is_changed_in_a_sample_is_joined(index: Path, folder: Path) -> None:
    pack = PackedDataset(index, ProcessorEncoder(folder))[0]
    pack.samples[1]["pixel_values"] = pack.samples[1]["pixel_values"] * 2
    expected = torch.cat([sample["pixel_values"] for sample in pack.samples])
    assert torch.equal(collate(pack)["pixel_values"], expected)
    assert torch.equal(collate(pickle.loads(pickle.dumps(pack)))["pixel_values"], expected)


def test_samples_in_another_order_are_copied(index: Path, folder: Path) -> None:
    pack = PackedDataset(index, ProcessorEncoder(folder))[0]
    pack.segments.reverse()
    expected = torch.cat([segment.tensors["pixel_values"] for segment in pack.segments])
    assert torch.equal(pack.joined()["pixel_values"], expected)


@pytest.mark.parametrize("pixels", ["float32", "uint8"])
@pytest.mark.parametrize("size", [None, 2])
def test_from_workers(index: Path, folder: Path, pixels: str, size: int | None) -> None:
    dataset = PackedDataset(index, ProcessorEncoder(folder, pixels=pixels))
    numbers = [0, 1, 2, 3]
    join = None if size is None else collate
    loader = DataLoader(dataset, size, sampler=numbers, num_workers=1, collate_fn=join)
    expected = PackedDataset(index, plain(folder))
    for at, given in enumerate(loader):
        some = numbers[at * (size or 1) : (at + 1) * (size or 1)]
        if size is None:
            assert lie_together(given)
            assert given.samples[0]["pixel_values"].is_shared()
            given = collate(given)
        batch = normalise_pixels(given)
        assert ("pixel_table" in given) == (pixels == "uint8")
        theirs = collate([expected[k] for k in some])
        assert batch.keys() == theirs.keys()
        for key, value in theirs.items():
            assert np.array_equal(value, batch[key]), key


def test_packs_of_two_processors(index: Path, folder: Path) -> None:
    encode = ProcessorEncoder(folder, pixels="uint8")
    packs = [PackedDataset(index, encode)[0] for _ in range(2)]
    assert packs[1].pixel_table is not None
    packs[1].pixel_table = packs[1].pixel_table + 1
    with pytest.raises(MismatchError, match="two processors"):
        collate(packs)


def test_a_sample_alone_is_pickled_without_its_pack(index: Path, folder: Path) -> None:
    pack = PackedDataset(index, ProcessorEncoder(folder, pixels="uint8"))[0]
    whole = sum(sample["pixel_values"].nbytes for sample in pack.samples)
    alone = pack.alone()
    assert len(alone) > 4
    assert sum(len(pickle.dumps(each)) for each in alone) < 2 * whole


def build_model(ids: dict[str, int]) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    text = {**sizes, **heads, "vocab_size": 30_000, "rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    vision |= {"out_hidden_size": 64, "fullatt_block_indexes": []}
    tokens = {f"{kind}_token_id": ids[kind] for kind in ("image", "video")}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prepared_model_takes_bytes(index: Path, folder: Path, dtype: torch.dtype) -> None:
    encode = ProcessorEncoder(folder)
    model = build_model(encode.media_token_ids).eval().to(dtype)
    losses = {}
    for pixels in ("float32", "uint8"):
        batch = collate(PackedDataset(index, ProcessorEncoder(folder, pixels=pixels))[0])
        if pixels == "uint8":
            with pytest.raises((IndexError, RuntimeError)):
                model(**batch)
            prepare_model(model)
        with torch.no_grad():
            losses[pixels] = model(**batch).loss
    assert torch.equal(losses["float32"], losses["uint8"])
