"""Kimi-K2.5: images keep their shape and are padded; videos are chunks of frames with timestamps.

transformers 5.23, `models/kimi_k25`. A chunk of up to `temporal_patch_size` frames is one attention
span of the vision tower and becomes as many tokens as one frame.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    GRID_INPUTS,
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    MediaCounts,
    Settings,
    VideoCount,
    VisionFamily,
    image_grids,
)
from packidx.processor.families.shared.frames import (
    Frames,
    frames_used,
    sample_evenly,
    timestamps,
)
from packidx.records.conversation import MediaInfo

IMAGE = "<|media_pad|>"
VIDEO = "<|kimi_k25_video_placeholder|>"


@dataclass(frozen=True, slots=True)
class Limits:
    """How large an image or a frame may be."""

    patch_size: int
    merge_size: int
    max_patches: int
    max_patches_per_side: int

    def grid(self, heights: ArrayLike, widths: ArrayLike) -> tuple[Int64s, Int64s]:
        """Patches per column and per row of sizes ``[n]`` in pixels, padding included; 0 where one
        is not positive.

        transformers 5.23, `navit_resize`, vectorised: the same float64 operations in the same
        order. Images are never enlarged.
        """
        height = np.atleast_1d(np.asarray(heights, np.int64))
        width = np.atleast_1d(np.asarray(widths, np.int64))
        valid = (height > 0) & (width > 0)
        h, w = np.where(valid, height, 1), np.where(valid, width, 1)
        patches = [np.maximum(1.0, side // self.patch_size) for side in (h, w)]
        longest = self.max_patches_per_side * self.patch_size
        scale = np.minimum(1.0, np.sqrt(self.max_patches / (patches[0] * patches[1])))
        scale = np.minimum(scale, np.minimum(longest / h, longest / w))
        factor = self.merge_size * self.patch_size
        padded = []
        for side in (h, w):
            resized = np.maximum(1, (side * scale).astype(np.int64))
            resized = np.minimum(resized, longest)
            padded.append((factor - resized % factor) % factor + resized)
        rows, columns = (np.where(valid, side // self.patch_size, 0) for side in padded)
        return rows, columns


@dataclass(frozen=True, slots=True)
class KimiVision(VisionFamily):
    """A Kimi-K2.5 processor."""

    placeholders: ClassVar[Mapping[str, str]] = {"image": IMAGE, "video": VIDEO}
    model_inputs: ClassVar[tuple[str, ...]] = GRID_INPUTS

    images: Limits
    frames: Limits
    temporal_patch_size: int
    do_sample_frames: bool
    num_frames: int | None
    fps: float | None

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
        rows, columns = self.images.grid(sizes[:, 0], sizes[:, 1])
        return image_grids(rows, columns, self.images.merge_size)

    def count_videos(
        self, videos: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        counts = VisionFamily.count_videos(self, videos, samples)
        return replace(counts, span=self.temporal_patch_size)

    def _count_video(self, video: MediaInfo) -> VideoCount:
        frames = self.sample_frames(video)
        rows, columns = (int(side[0]) for side in self.frames.grid(video.height, video.width))
        tokens = rows * columns // self.frames.merge_size**2
        seconds = timestamps(frames[:: self.temporal_patch_size], video.fps)
        text = "".join(
            f"{_clock(second)}<|media_begin|>video<|media_content|>{VIDEO}<|media_end|>"
            for second in seconds
        )
        runs = (tokens,) * len(seconds)
        return (len(frames), rows, columns), sum(runs), Expansion(text, runs)

    def sample_frames(self, video: MediaInfo) -> Frames:
        sample = partial(sample_evenly, num_frames=self.num_frames, wanted_fps=self.fps)
        return frames_used(video, sample if self.do_sample_frames else None)

    @classmethod
    def from_settings(cls, settings: Settings, video: Settings, own: Settings) -> KimiVision:
        """From the complete settings of image and video processor.

        Raises:
            SourceError: they ask for what Kimi's processor cannot do.
        """
        num_frames, fps = video.get("num_frames"), video.get("fps")
        if num_frames is not None and fps is not None and video["do_sample_frames"]:
            raise SourceError(
                f"the video processor has num_frames {num_frames} and fps {fps}, but only one of "
                "them can hold: remove num_frames"
            )
        return cls(
            images=_limits("image", settings),
            frames=_limits("video", video),
            temporal_patch_size=int(video["temporal_patch_size"]),
            do_sample_frames=bool(video["do_sample_frames"]),
            num_frames=num_frames,
            fps=fps,
        )


def _limits(kind: str, settings: Settings) -> Limits:
    size = settings["size"]
    side = size.get("max_height")
    if not settings["do_resize"] or not side or side != size.get("max_width"):
        raise SourceError(
            f"the {kind} processor must resize to a size with equal max_height and max_width "
            f"(patches), but has do_resize {settings['do_resize']} and size {size}"
        )
    return Limits(
        patch_size=int(settings["patch_size"]),
        merge_size=int(settings["merge_size"]),
        max_patches=int(settings["max_patches"]),
        max_patches_per_side=int(side),
    )


def _clock(seconds: float) -> str:
    """``hh:mm:ss.fff``, cut off rather than rounded."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"


# Class defaults of transformers 5.23: Kimi_K25ImageProcessor and Kimi_K25VideoProcessor.
_BOTH: dict[str, Any] = {
    **SIGLIP_DEFAULTS,
    "size": {"max_height": 512, "max_width": 512},
    "patch_size": 14,
    "merge_size": 2,
}
_VIDEO = {**_BOTH, "max_patches": 4096, "temporal_patch_size": 4, "fps": 2}
KIMI_K25 = Family(
    "kimi_k25",
    "Kimi_K25Processor",
    {**_BOTH, "max_patches": 16384},
    {**_VIDEO, "do_sample_frames": True},
    KimiVision.from_settings,
)
