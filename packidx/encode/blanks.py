"""Media of a given shape without content, or with noise, to try a processor with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from packidx.encode.imports import import_torch
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.clips import Audio, Samples, Video


def blank_medium(kind: str, info: MediaInfo, *, noise: bool = False) -> Media:
    """Return a medium of a shape: black pixels or silence, or noise."""
    if kind == "audio":
        return Media(kind, BlankSound(info, noise=noise))
    if kind == "video":
        return Media(kind, BlankVideo(info, noise=noise))
    shape = info.height, info.width, 3
    return Media(kind, Image.fromarray(_noise(shape) if noise else np.zeros(shape, np.uint8)))


def _noise(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


class BlankVideo(Video):
    """A video of black frames, whose tensor takes the memory of one, or of noise."""

    def __init__(self, info: MediaInfo, *, noise: bool = False) -> None:
        super().__init__((), "a blank video")
        self.info, self._noise = info, noise

    def frames(self, indices: ArrayLike) -> NDArray[np.uint8]:
        """See the base."""
        shape = (len(np.asarray(indices)), self.info.height, self.info.width, 3)
        return _noise(shape) if self._noise else np.zeros(shape, np.uint8)

    def tensor(self, indices: NDArray[np.int64]) -> Any:
        """Return frames as uint8 ``[n, 3, height, width]``."""
        torch = import_torch()
        if self._noise:
            return torch.from_numpy(self.frames(indices)).permute(0, 3, 1, 2).contiguous()
        frame = torch.zeros((1, 3, self.info.height, self.info.width), dtype=torch.uint8)
        return frame.expand(len(indices), -1, -1, -1)


class BlankSound(Audio):
    """A sound of zeros, or of noise."""

    def __init__(self, info: MediaInfo, *, noise: bool = False) -> None:
        super().__init__(b"", "a blank sound")
        self.info, self._noise = info, noise

    def waveform(self, sampling_rate: int) -> Samples:
        """See the base."""
        num = self.info.num_samples
        wave = _noise((num,)) / np.float32(1280) if self._noise else np.zeros(num, np.float32)
        return np.asarray(wave, np.float32)
