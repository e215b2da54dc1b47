"""Bytes of tiles become the floats of the image processor, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_processors import family_processor
from family_processors_tiles import gemma3, llava, llava_next
from image_modes import images, record
from PIL import Image
from tiny_models import fresh
from transformers import AutoProcessor

from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError
from packidx.torch import normalise_pixels, prepare_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tmp = tmp_path_factory.mktemp("tiles")
    found = {"internvl": family_processor("internvl-small", tmp)[1]}
    makers = {"gemma3": lambda: gemma3(tmp, 112), "llava": lambda: llava(tmp)}
    for name, make in {**makers, "llava_next": lambda: llava_next(tmp, 4)}.items():
        found[name] = tmp / f"{name}-saved"
        make().save_pretrained(found[name])
    return found


def normalised(encode: ProcessorEncoder, sample: dict[str, Any]) -> dict[str, Any]:
    assert encode.pixel_table is not None and sample["pixel_values"].dtype == torch.uint8
    return normalise_pixels({**sample, "pixel_table": torch.from_numpy(encode.pixel_table)})


def assert_equal(made: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(made[key], value), key


@pytest.mark.parametrize("name", ["internvl", "gemma3", "llava"])
def test_every_mode(name: str, folders: dict[str, Path]) -> None:
    floats = ProcessorEncoder(folders[name])
    encode = ProcessorEncoder(folders[name], pixels="uint8")
    given = list(images(0, 24))
    for first, second in zip(given, given[5:] + given[:5], strict=True):
        for several in ([first], [first, second]):
            expected = floats(record(*(image.copy() for image in several)))
            assert_equal(normalised(encode, encode(record(*several))), expected)
    counted = expected["pixel_values"].dtype
    assert counted == torch.float32 and all(encode._tiles["image"]._is_same.values())


def test_frames_share_a_tensor_with_images(folders: dict[str, Path]) -> None:
    """InternVL's video, an image beside it."""
    frames = np.random.default_rng(0).integers(0, 256, (6, 70, 90, 3), np.uint8)
    video = {"type": "video", "video": [Image.fromarray(frame) for frame in frames], "fps": 2.0}
    sample = record(Image.fromarray(frames[0]))
    sample["messages"][0]["content"].insert(0, video)
    encode = ProcessorEncoder(folders["internvl"], pixels="uint8")
    assert_equal(normalised(encode, encode(sample)), ProcessorEncoder(folders["internvl"])(sample))


def test_tiles_that_are_padded_stay_floats(folders: dict[str, Path]) -> None:
    image = next(images(1, 1))
    encode = ProcessorEncoder(folders["llava_next"], pixels="uint8")
    assert_equal(encode(record(image)), ProcessorEncoder(folders["llava_next"])(record(image)))
    assert encode.pixel_table is None


class Brightened:
    """An image processor whose last step does more with images of one mode."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, images: list[list[Image.Image]], **options: Any) -> Any:
        made = self._part(images=images, **options)
        if images[0][0].mode == "L" and options.get("do_normalize", True):
            made["pixel_values"] = made["pixel_values"] + 0.001
        return made


def test_a_last_step_of_its_own_is_seen(folders: dict[str, Path]) -> None:
    processor = AutoProcessor.from_pretrained(folders["internvl"])
    image = Image.effect_noise((90, 70), 80)
    encode = ProcessorEncoder(processor, pixels="uint8")
    encode._parts["image"] = Brightened(encode._parts["image"])
    encode(record(image.convert("RGB")))
    with pytest.raises(MismatchError, match="of no bytes"):
        encode(record(image))


def test_a_prepared_model_takes_bytes_of_tiles() -> None:
    model = prepare_model(fresh("internvl"))
    tiles = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    table = torch.randn(1, 256, 3)
    floats = torch.stack([table[0, :, c][tiles[:, c].long()] for c in range(3)], 1)
    ids = torch.full((1, 4), model.config.image_token_id)
    given = {"input_ids": ids, "position_ids": torch.arange(4)[None]}
    with torch.no_grad():
        bytes_, expected = (
            model(**given, pixel_values=tiles, pixel_table=table).logits,
            model(**given, pixel_values=floats).logits,
        )
    assert torch.equal(bytes_, expected)
