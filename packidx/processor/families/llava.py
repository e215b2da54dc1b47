"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: a whole image, and for the latter two its tiles, too.

LLaVA-NeXT cuts an image into tiles of the grid that fits it best; rows and columns that are padding
only become no tokens, and one more token ends each row. LLaVA-OneVision shrinks what is then too
much, takes tiles only where a sample has a single image, and has video: frames pooled by two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.processor.families.base import MediaCounts, VisionFamily, no_videos
from packidx.processor.families.shared.frames import (
    Frames,
    frames_used,
    sample_each,
    sample_evenly,
)
from packidx.processor.families.shared.tiles import best_resolution, positive_sizes, without
from packidx.records.conversation import MediaInfo


@dataclass(frozen=True, slots=True)
class LlavaVision(VisionFamily):
    """A LLaVA processor: every image becomes the same square."""

    family: str
    patches: int
    """Patches per side of a tile."""
    base_tokens: int
    """Tokens of a whole image that is one tile."""
    dropped: int
    """1 where the vision tower's first token is left out, else 0."""
    image_token: str
    model_inputs: tuple[str, ...] = ("pixel_values",)

    @property
    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.image_token}

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        heights, _, errors = positive_sizes(sizes)
        num = len(heights)
        grids = np.full((num, 3), (1, self.patches, self.patches), np.int64)
        tokens = np.full(num, self.base_tokens - self.dropped, np.int64)
        return MediaCounts(without(grids, errors), without(tokens, errors), errors=errors)


@dataclass(frozen=True, slots=True)
class TiledLlavaVision(LlavaVision):
    """A LLaVA-NeXT or LLaVA-OneVision processor."""

    side: int = 0
    """Pixels per side of a tile."""
    resolutions: tuple[tuple[int, int], ...] = ()
    """(height, width) in pixels that an image's tiles may make up."""
    max_tiles: int | None = None
    """Tiles whose tokens an image may have before they are shrunk; None sets no limit."""
    video_token: str | None = None
    sampling: Mapping[str, Any] | None = None
    """The video processor's settings where it picks frames; None where it takes all."""

    @property
    def placeholders(self) -> Mapping[str, str]:
        tokens = {"image": self.image_token}
        return tokens if self.video_token is None else {**tokens, "video": self.video_token}

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        """Counts of images ``[n, 2]`` (height, width).

        Args:
            sizes: in pixels, after orientation.
            samples: ``[n]`` the number of the sample that each image is in, which LLaVA-OneVision
                needs to know; None where each has its own.
        """
        heights, widths, errors = positive_sizes(sizes)
        rows, columns = best_resolution(heights, widths, self.resolutions)
        rows, columns = rows // self.side, columns // self.side
        tokens = self.base_tokens - self.dropped + self._tile_tokens(heights, widths, rows, columns)
        num_tiles = rows * columns + 1
        if self.video_token is not None and samples is not None:
            owners = np.asarray(samples, np.int64)
            shared = np.bincount(owners)[owners] > 1
            tokens[shared] = self.base_tokens - self.dropped + 1  # the row of one tile has an end
            num_tiles[shared] = 1
        side = np.full_like(num_tiles, self.patches)
        grids = np.stack([num_tiles, side, side], axis=1)
        return MediaCounts(without(grids, errors), without(tokens, errors), errors=errors)

    def _tile_tokens(
        self, heights: Int64s, widths: Int64s, rows: Int64s, columns: Int64s
    ) -> Int64s:
        """Tokens of images' tiles, `rows` x `columns` of them, and of the ends of their rows.

        transformers 5.23, `_get_unpadded_features` of both processors, for n images at once.
        """
        height, width = self.patches * rows, self.patches * columns
        wider = widths / heights > width / height
        with_rows = np.floor(np.round(heights * (width / widths), 7)).astype(np.int64)
        with_columns = np.floor(np.round(widths * (height / heights), 7)).astype(np.int64)
        height, width = (
            np.where(wider, height - (height - with_rows) // 2 * 2, height),
            np.where(wider, width, width - (width - with_columns) // 2 * 2),
        )
        if self.max_tiles is not None:
            ratio = np.sqrt(height * width / (self.max_tiles * self.patches**2))
            shrunk = ratio > 1.1
            ratio = np.where(shrunk, ratio, 1.0)
            height = np.where(shrunk, np.floor_divide(height, ratio), height).astype(np.int64)
            width = np.where(shrunk, np.floor_divide(width, ratio), width).astype(np.int64)
        return height * width + height

    def count_videos(
        self, videos: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        if self.video_token is None:
            return no_videos(self.family, videos)
        frames, errors = sample_each(videos, self.sample_frames)
        num_frames = np.array([len(taken) for taken in frames], np.int64)
        pooled = math.ceil(self.patches / 2)
        side = np.where(num_frames > 0, self.patches, 0)
        tokens = np.where(num_frames > 0, num_frames * pooled**2 + 1, 0)
        return MediaCounts(np.stack([num_frames, side, side], axis=1), tokens, errors=errors)

    def sample_frames(self, video: MediaInfo) -> Frames:
        if self.sampling is None:
            return frames_used(video, None)
        num_frames, fps = self.sampling.get("num_frames"), self.sampling.get("fps")
        return frames_used(video, partial(sample_evenly, num_frames=num_frames, wanted_fps=fps))
