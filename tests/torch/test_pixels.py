"""Packs of real photographs: pixels from workers, as bytes, and a model that takes them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from processors import FEW_RANKS, qwen_folders
from tiny_vlms import tiny_vlm
from torch.utils.data import DataLoader
from transformers import AutoProcessor

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import (
    Pack,
    PackedDataset,
    collate,
    normalise_pixels,
    prepare_model,
)


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


def lie_together(pack: Pack) -> bool:
    pixels = [sample["pixel_values"] for sample in pack.samples if "pixel_values" in sample]
    return len({each.untyped_storage().data_ptr() for each in pixels}) == 1 < len(pixels)


@pytest.mark.parametrize("pixels", ["float32", "uint8"])
@pytest.mark.parametrize("size", [None, 2])
def test_from_workers(index: Path, folder: Path, pixels: str, size: int | None) -> None:
    dataset = PackedDataset(index, ProcessorEncoder(folder, pixels=pixels))
    numbers = [0, 1, 2, 3]
    join = None if size is None else collate
    loader = DataLoader(dataset, size, sampler=numbers, num_workers=1, collate_fn=join)
    expected = PackedDataset(index, ProcessorEncoder(folder))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prepared_model_takes_bytes(index: Path, folder: Path, dtype: torch.dtype) -> None:
    model = tiny_vlm("qwen2_5_vl", AutoProcessor.from_pretrained(folder)).to(dtype)
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
