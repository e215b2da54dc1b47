"""Images of every mode, as files, and what an image processor makes of them by itself."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from packidx.encode import ProcessorEncoder
from packidx.errors import MismatchError
from packidx.records.media.images import open_image
from packidx.torch import normalise_pixels

FORMATS = {
    "RGB": ("JPEG", "PNG", "WEBP"),
    "L": ("JPEG", "PNG"),
    "CMYK": ("JPEG", "TIFF"),
    "RGBA": ("PNG", "WEBP"),
    "LA": ("PNG",),
    "P": ("PNG", "GIF"),
    "PA": (None,),
    "1": ("PNG", "TIFF"),
    "I;16": ("PNG", "TIFF"),
    "YCbCr": ("JPEG",),
    "I": ("TIFF",),
    "F": ("TIFF",),
}
"""Pillow's modes, and files of them; None where no file gives it, so that it is opened already."""
_SIDES = (1, 13, 27, 28, 29, 56, 63, 97, 140, 201, 300)


def images(seed: int, number: int) -> Iterator[Image.Image]:
    """Images of all modes and orientations and of odd sizes, opened as `packidx` opens them."""
    return map(open_image, files(seed, number))


def files(seed: int, number: int) -> Iterator[bytes | Image.Image]:
    """The bytes of their files; of a mode that no file has, the image."""
    rng = random.Random(seed)
    modes = list(FORMATS)
    for at in range(number):
        mode = modes[at % len(modes)]
        height, width = rng.choice(_SIDES), rng.choice(_SIDES)
        if max(height, width) > 150 * min(height, width):
            height = width
        yield _file(mode, height, width, rng)


def _file(mode: str, height: int, width: int, rng: random.Random) -> bytes | Image.Image:
    noise = np.random.default_rng(rng.getrandbits(32))
    values = noise.integers(0, 256, (height, width, 4), np.uint8)
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    elif mode == "PA":
        image = Image.fromarray(values).convert("RGB").convert("P").convert("PA")
    else:
        image = Image.fromarray(values).convert("RGB" if mode == "P" else "RGBA").convert(mode)
    form = rng.choice(FORMATS[mode])
    if form is None:
        return image
    options: dict[str, Any] = {}
    if form in ("JPEG", "PNG", "WEBP") and rng.random() < 0.5:
        exif = Image.Exif()
        exif[0x0112] = rng.randint(1, 8)
        options["exif"] = exif
    if mode in ("P", "L", "RGB") and form == "PNG" and rng.random() < 0.4:
        options["transparency"] = (3, 4, 5) if mode == "RGB" else 3
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def record(*given: Image.Image) -> dict[str, Any]:
    """A question about images."""
    asked: list[dict[str, Any]] = [{"type": "image", "image": image} for image in given]
    asked.append({"type": "text", "text": "what?"})
    answer = {"role": "assistant", "content": "that"}
    return {"messages": [{"role": "user", "content": asked}, answer]}


def assert_equal_pixels(folder: Any, part: Any, given: Iterator[Image.Image]) -> None:
    """Pixels in each form are those that the image processor `part` makes of each image."""
    forms = {
        form: ProcessorEncoder(folder, pixels=form) for form in ("float32", "bfloat16", "uint8")
    }
    for image in given:
        try:
            theirs = part(images=[[image.copy()]], return_tensors="pt")
        except ValueError:  # older releases of GLM's refuse narrow ones
            for encode in forms.values():
                with pytest.raises(MismatchError, match="does not build images"):
                    encode(record(image.copy()))
            continue
        where = f"{image.mode} {image.size} {image.info.keys()}"
        made = {form: encode(record(image.copy())) for form, encode in forms.items()}
        floats = made["float32"]["pixel_values"]
        assert torch.equal(floats, theirs["pixel_values"]), where
        assert torch.equal(made["bfloat16"]["pixel_values"], floats.bfloat16()), where
        table = forms["uint8"].pixel_table
        assert table is not None
        assert made["uint8"]["pixel_values"].dtype == torch.uint8, where
        batch = {**made["uint8"], "pixel_table": torch.from_numpy(table)}
        assert torch.equal(normalise_pixels(batch)["pixel_values"], floats), where
        rounded = normalise_pixels(batch, torch.bfloat16)["pixel_values"]
        assert torch.equal(rounded, floats.bfloat16()), where
        for each in made.values():
            assert torch.equal(each["image_grid_thw"], theirs["image_grid_thw"]), where
