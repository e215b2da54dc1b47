"""Media of a given shape, to probe a processor with."""

from __future__ import annotations

import random

import numpy as np
from PIL import Image

from packidx.records.conversation import Media

# Pixels (height, width) of the images that decide what an expansion depends on.
_SIDES = [(48, 64), (211, 337), (100, 300), (400, 90), (28, 28), (17, 13), (333, 500), (224, 224)]
_SIDES += [(405, 720), (260, 41), (640, 480), (97, 333)]
_NUMBERS = (1, 2, 3, 4, 2, 3, 1, 2, 1, 3, 4, 1, 2, 1, 2, 3)


def image_shape(height: int, width: int) -> str:
    """The key of an image of this size, in pixels."""
    return f"{height}x{width}"


def blank(kind: str, shape: str) -> Media:
    """A medium of a shape that says nothing."""
    height, width = map(int, shape.split("x"))
    return Media(kind, Image.new("RGB", (width, height)))


def noise(kind: str, shape: str, seed: int) -> Media:
    """The same with random content."""
    height, width = map(int, shape.split("x"))
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Media(kind, Image.fromarray(pixels))


def random_tuples(kind: str) -> list[tuple[str, ...]]:
    """Shapes of the media of 16 samples; many shapes more than once, also in one sample."""
    rng = random.Random(0)
    shapes = [image_shape(*sides) for sides in _SIDES]
    return [tuple(rng.choices(shapes, k=number)) for number in _NUMBERS]
