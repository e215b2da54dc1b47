"""Blank media of a given shape, to try a processor with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from packidx.encode.imports import import_torch
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.audio import Audio, Samples
from packidx.records.media.video import Video


def blank_medium(kind: str, info: MediaInfo) -> Media:
    """Return a medium of a shape: black pixels or silence."""
    if kind == "audio":
        return Media(kind, Silence(info))
    if kind == "video":
        return Media(kind, BlankVideo(info), frame_indices=info.frame_indices)
    return Media(kind, Image.new("RGB", (info.width, info.height)))


def num_values(kind: str, info: MediaInfo) -> int:
    """Return the pixels of an image or of all frames of a video, or the samples of a sound."""
    if kind == "audio":
        return info.num_samples
    return math.prod((info.num_frames, info.height, info.width))


class BlankVideo(Video):
    """A video of black frames; its tensor takes the memory of one.

    Args:
        info: its shape.
        is_abstract: True for a tensor of a shape alone (torch's device ``meta``).
    """

    def __init__(self, info: MediaInfo, *, is_abstract: bool = False) -> None:
        super().__init__((), "a blank video")
        self.info = info
        self._device = "meta" if is_abstract else "cpu"

    def frames(self, indices: ArrayLike) -> NDArray[np.uint8]:
        """See the base."""
        shape = (len(np.asarray(indices)), self.info.height, self.info.width, 3)
        return np.zeros(shape, np.uint8)

    def tensor(self, indices: NDArray[np.int64]) -> Any:
        """Return frames as uint8 ``[n, 3, height, width]``."""
        torch = import_torch()
        frame = torch.zeros((1, 3, self.info.height, self.info.width), dtype=torch.uint8)
        return frame.to(self._device).expand(len(indices), -1, -1, -1)


class Silence(Audio):
    """A sound of zeros."""

    def __init__(self, info: MediaInfo) -> None:
        super().__init__(b"", "a blank sound")
        self.info = info

    def waveform(self, sampling_rate: int) -> Samples:
        """See the base."""
        return np.zeros(self.info.num_samples, np.float32)
