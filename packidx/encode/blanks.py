"""Media of a given shape, made up: to probe a processor with, and to compare samples.

A shape is all of a medium that a processor's tokens may depend on, as text: an image's
``480x640`` (height, width), a video's ``33x480x640@29.97`` (frames and their rate), a sound's
``16001@16000`` (samples and their rate).
"""

from __future__ import annotations

import math
import random
import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from packidx.encode.imports import import_torch
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.audio import Audio, Samples
from packidx.records.media.video import Video

# Pixels (height, width) of the images that decide what an expansion depends on.
_SIDES = [(48, 64), (211, 337), (100, 300), (400, 90), (28, 28), (17, 13), (333, 500), (224, 224)]
_SIDES += [(405, 720), (260, 41), (640, 480), (97, 333)]
_NUMBERS = (1, 2, 3, 4, 2, 3, 1, 2, 1, 3, 4, 1, 2, 1, 2, 3)
_CLIPS = ["9x48x64@10.0", "21x100x60@29.97", "5x64x64@2.0", "33x40x90@7.5", "8x112x56@1.0 frames"]
_CLIPS += ["50x36x48@25.0", "2x80x80@24.0"]
_NUM_CLIPS = (1, 2, 1, 3, 1, 2, 1, 1)
_SECONDS = (1.0, 0.2, 3.0, 0.04, 5.0, 2.0, 3.33, 11.7)
"""And one sample more: whether that begins another step may depend on the sounds beside it."""
TRIED_SECONDS = (0.02, 0.1, 0.1001, 0.26, 0.8, 1.01, 1.5, 2.0, 4.2, 7.7, 15.3, 31.0)
"""Lengths of sound that tell whether a longer one ever becomes fewer tokens."""
_NUM_SOUNDS = (1, 2, 3, 2, 1, 2, 3, 1, 4, 2)
_CLIP = re.compile(r"(\d+)x(\d+)x(\d+)@(\S*)( frames)?(?: at (\S+))?")


def image_shape(height: int, width: int) -> str:
    """The key of an image of this size, in pixels."""
    return f"{height}x{width}"


def video_shape(info: MediaInfo) -> str:
    """The key of a video: a file, ``…frames`` where these are given one by one, ``… at 0+8+16``
    where the record says which of them are used."""
    rate = "" if info.fps is None else repr(float(info.fps))
    shape = f"{info.num_frames}x{info.height}x{info.width}@{rate}"
    shape += " frames" if info.extracted else ""
    indices = info.frame_indices
    return shape if indices is None else f"{shape} at {'+'.join(map(str, indices))}"


def sound_shape(num_samples: int, rate: int) -> str:
    """The key of a sound of so many samples at the processor's rate."""
    return f"{num_samples}@{rate}"


def length_of(key: str) -> int:
    """Samples of a sound, by its shape or the key that ends with it."""
    return int(key.rpartition(" ")[2].partition("@")[0])


def shape_of(medium: Media) -> str:
    """In words, what a medium is that was opened."""
    if isinstance(medium.ref, Audio):
        return sound_shape(medium.ref.info.num_samples, medium.ref.info.sampling_rate)
    if isinstance(medium.ref, Video):
        return video_shape(medium.ref.info)
    if isinstance(medium.ref, list | tuple):
        return f"{len(medium.ref)} frames of {'x'.join(map(str, medium.ref[0].size))}"
    return image_shape(medium.ref.height, medium.ref.width)


def num_values(kind: str, shape: str) -> int:
    """Pixels of an image, of a video's frames together, or samples of a sound."""
    if kind == "audio":
        return length_of(shape)
    sides = shape.partition("@")[0]
    return math.prod(map(int, sides.split("x")))


def medium_of(
    kind: str, shape: str, seed: int | None = None, *, is_abstract: bool = False
) -> Media:
    """Return a medium of a shape, made up.

    Args:
        seed: of its random content; None makes it say nothing: black pixels, silence.
        is_abstract: of a video, as for `MadeUpVideo`.
    """
    if kind == "audio":
        num_samples, rate = map(int, shape.split("@"))
        info = MediaInfo(0, 0, num_samples=num_samples, sampling_rate=rate)
        return Media(kind, MadeUpSound(info, seed))
    if kind == "video":
        info = _video_info(shape)
        own_seed = None if seed is None else seed + zlib.crc32(shape.encode())
        video = MadeUpVideo(info, own_seed, is_abstract=is_abstract)
        return Media(kind, video, frame_indices=info.frame_indices)
    height, width = map(int, shape.split("x"))
    if seed is None:
        return Media(kind, Image.new("RGB", (width, height)))
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Media(kind, Image.fromarray(pixels))


def _video_info(shape: str) -> MediaInfo:
    stated: Any = _CLIP.fullmatch(shape)
    num_frames, height, width = map(int, stated.group(1, 2, 3))
    return MediaInfo(
        height,
        width,
        num_frames,
        float(stated[4]) if stated[4] else None,
        None if stated[6] is None else tuple(map(int, stated[6].split("+"))),
        stated[5] is not None,
    )


def random_tuples(kind: str, rate: int = 16000) -> list[tuple[str, ...]]:
    """Shapes of the media of some samples; many shapes more than once, also in one sample.

    Args:
        rate: samples of sound per second, as the processor takes it.
    """
    rng = random.Random(0)
    if kind == "audio":
        shapes = [sound_shape(int(seconds * rate) + 1, rate) for seconds in _SECONDS]
        return [tuple(rng.choices(shapes, k=number)) for number in _NUM_SOUNDS]
    if kind == "video":
        return [tuple(rng.choices(_CLIPS, k=number)) for number in _NUM_CLIPS]
    shapes = [image_shape(*sides) for sides in _SIDES]
    return [tuple(rng.choices(shapes, k=number)) for number in _NUMBERS]


class MadeUpVideo(Video):
    """A video of a shape.

    Args:
        info: its shape.
        seed: of its random frames; None makes them black, and its tensor as small as one of them.
        is_abstract: whether the tensor of a black one has a shape alone (torch's device ``meta``):
            what is done to it costs nothing, and fails where a value is looked at.
    """

    def __init__(
        self, info: MediaInfo, seed: int | None = None, *, is_abstract: bool = False
    ) -> None:
        super().__init__((), "a made-up video")
        self.info = info
        self._seed = seed
        self._is_abstract = is_abstract

    def frames(self, indices: ArrayLike) -> NDArray[np.uint8]:
        shape = (self.info.num_frames, self.info.height, self.info.width, 3)
        every = np.zeros(shape, np.uint8)
        if self._seed is not None:
            every = np.random.default_rng(self._seed).integers(0, 256, shape, np.uint8)
        taken: NDArray[np.uint8] = every[np.asarray(indices, np.int64)]
        return taken

    def tensor(self, indices: NDArray[np.int64]) -> Any:
        """Return frames as uint8 ``[n, 3, height, width]``."""
        torch = import_torch()
        if self._seed is not None:
            return torch.from_numpy(self.frames(indices)).permute(0, 3, 1, 2).contiguous()
        device = "meta" if self._is_abstract else "cpu"
        frame = torch.zeros((1, 3, self.info.height, self.info.width), dtype=torch.uint8)
        return frame.to(device).expand(len(indices), -1, -1, -1)


class MadeUpSound(Audio):
    """Silence, or noise of a seed."""

    def __init__(self, info: MediaInfo, seed: int | None) -> None:
        super().__init__(b"", "a made-up sound")
        self.info = info
        self._seed = seed

    def waveform(self, sampling_rate: int) -> Samples:
        num = self.info.num_samples
        if self._seed is None:
            return np.zeros(num, np.float32)
        wave = np.random.default_rng(self._seed).normal(0, 0.1, num).astype(np.float32)
        return np.asarray(wave, np.float32)
