"""Patches that are made here are those that the image processor makes, to the last bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from family_processors import family_processor
from image_modes import assert_equal_pixels, images, record
from PIL import Image
from processors import FEW_RANKS, qwen_folders
from transformers import AutoProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError, OptionError
from packidx.torch import normalise_pixels

NAMES = ["qwen2.5-vl", "qwen3-vl", "glm4v"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """Name → a processor and its folder."""
    folders = qwen_folders(tmp_path_factory.getbasetemp() / "processors", FEW_RANKS)
    found = {name: (AutoProcessor.from_pretrained(path), path) for name, path in folders.items()}
    found["glm4v"] = family_processor("glm4v", tmp_path_factory.mktemp("glm4v"))
    return found


@pytest.mark.parametrize("num", [24, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_every_mode_and_orientation(name: str, num: int, made: dict[str, tuple[Any, Path]]) -> None:
    processor, folder = made[name]
    assert_equal_pixels(folder, processor.image_processor, images(num, num))


SETTINGS: list[dict[str, Any]] = [
    {"resample": 2},
    {"resample": 0},
    {"do_normalize": False},
    {"do_rescale": False},
    {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 0.9, 0.8]},
    {"do_convert_rgb": False},
    {"size": {"shortest_edge": 56 * 56, "longest_edge": 100 * 100}},
    {"temporal_patch_size": 1},
    {"temporal_patch_size": 3, "patch_size": 10, "merge_size": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(each))
def test_whatever_the_settings(settings: dict[str, Any], made: dict[str, tuple[Any, Path]]) -> None:
    processor = copy.deepcopy(made["qwen2.5-vl"][0])
    for key, value in settings.items():
        setattr(processor.image_processor, key, value)
    for image in images(2, 5):
        given = image.convert("RGB")
        encode = ProcessorEncoder(processor)
        theirs = processor.image_processor(images=[[given]], return_tensors="pt")
        ours = encode(record(given))
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
        assert torch.equal(ours["image_grid_thw"], theirs["image_grid_thw"])


def is_proven(encode: ProcessorEncoder) -> bool:
    encode(record(Image.new("RGB", (40, 50))))
    return encode._patches is not None


def test_the_way_of_our_own_is_taken(made: dict[str, tuple[Any, Path]]) -> None:
    assert all(is_proven(ProcessorEncoder(made[name][1])) for name in NAMES)


class Sharpened:
    """An image processor that treats some images in its own way."""

    def __init__(self, part: Any, mode: str | None, least: int) -> None:
        self._part, self._mode, self._least = part, mode, least

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, images: list[list[Image.Image]], **options: Any) -> Any:
        made = self._part(images=images, **options)
        image = images[0][0]
        if image.mode == (self._mode or image.mode) and image.width >= self._least:
            made["pixel_values"] = made["pixel_values"] * 2
        return made


@pytest.mark.parametrize(("mode", "least"), [("RGBA", 0), (None, 2000), ("L", 0)])
def test_a_processor_with_a_way_of_its_own_is_asked(
    mode: str | None, least: int, made: dict[str, tuple[Any, Path]]
) -> None:
    processor = copy.deepcopy(made["qwen2.5-vl"][0])
    processor.image_processor.size = {"shortest_edge": 3136, "longest_edge": 200_000}
    encode, bytes_of = ProcessorEncoder(processor), ProcessorEncoder(processor, pixels="uint8")
    part = Sharpened(processor.image_processor, mode, least)
    encode._parts["image"] = bytes_of._parts["image"] = part
    for width in (2100, 100):
        image = Image.effect_noise((width, 300), 80).convert(mode or "RGB")
        theirs = part([[image]], return_tensors="pt")["pixel_values"]
        assert torch.equal(encode(record(image))["pixel_values"], theirs)
        if width == 2100 and mode != "L":
            with pytest.raises(MismatchError, match="of no bytes"):
                bytes_of(record(image))


def test_pillow_resizes_where_the_processor_lets_it(made: dict[str, tuple[Any, Path]]) -> None:
    settings = made["qwen2.5-vl"][0].image_processor.to_dict()
    processor = copy.deepcopy(made["qwen2.5-vl"][0])
    processor.image_processor = part = Qwen2VLImageProcessorPil.from_dict(settings)
    encode = ProcessorEncoder(processor)
    assert is_proven(encode)
    for image in images(4, 12):
        theirs = part(images=[[image.copy()]], return_tensors="pt")["pixel_values"]
        assert torch.equal(encode(record(image))["pixel_values"], theirs)


def test_a_form_that_is_none(made: dict[str, tuple[Any, Path]]) -> None:
    with pytest.raises(OptionError, match="pixels is 'half': say one of float32, bfloat16, uint8"):
        ProcessorEncoder(made["qwen2.5-vl"][1], pixels="half")


def test_bytes_without_their_table() -> None:
    with pytest.raises(MismatchError, match="no pixel_table"):
        normalise_pixels({"pixel_values": torch.zeros(4, 588, dtype=torch.uint8)})


def test_other_batches_pass() -> None:
    batch = {"input_ids": torch.zeros(3), "pixel_values": torch.ones(2, 4)}
    assert normalise_pixels(batch, torch.bfloat16)["pixel_values"].dtype == torch.bfloat16
    assert normalise_pixels({"input_ids": [1]}) == {"input_ids": [1]}
