"""GLM-4.1V and GLM-4.6V: images keep their shape; a video is pairs of frames, each with its second.

transformers 5.23, `models/glm4v` and `models/glm46v`. A video's pixels are limited as a whole, so
that a longer one has smaller frames. Its features stand in for image tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from packidx.arrays import Int64s
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    GRID_INPUTS,
    Expansion,
    Family,
    ImageCounts,
    Settings,
    VideoCount,
    VisionFamily,
)
from packidx.processor.families.shared import (
    Frames,
    PixelLimits,
    frames_used,
    known_fps,
    pixel_limits,
    timestamps,
    too_few_frames,
    too_narrow,
)
from packidx.records.conversation import MediaInfo

IMAGE = "<|image|>"
VIDEO = "<|video|>"
STAMPED = 2
"""Every second frame's time is written, whatever the temporal patch size."""


@dataclass(frozen=True, slots=True)
class GlmVision(VisionFamily):
    """A GLM-V processor."""

    placeholders: ClassVar[Mapping[str, str]] = {"image": IMAGE, "video": VIDEO}
    feature_tokens: ClassVar[Mapping[str, str]] = {"image": IMAGE, "video": IMAGE}
    model_inputs: ClassVar[tuple[str, ...]] = GRID_INPUTS

    images: PixelLimits
    videos: PixelLimits
    sample: Callable[[int, float | None], Frames] | None
    """(number of frames, frames per second) → the frames taken; None takes all."""
    stamp: Callable[[float], str]
    """A frame's second → what is written after it."""

    @property
    def mrope_merge_size(self) -> int:
        return self.images.merge_size

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        rows, columns = self.images.grid(self.images.temporal_patch_size, heights, widths)
        return (1, rows, columns), rows * columns // self.images.merge_size**2, None

    def _count_video(self, video: MediaInfo) -> VideoCount:
        limits, frames = self.videos, self.sample_frames(video)
        if len(frames) < limits.temporal_patch_size:
            raise too_few_frames(len(frames), limits.temporal_patch_size)
        sides = limits.grid(len(frames), video.height, video.width)
        rows, columns = (int(side[0]) for side in sides)
        if not rows:
            raise too_narrow(video)
        pairs = -(-len(frames) // limits.temporal_patch_size)
        seconds = timestamps(frames[::STAMPED], video.fps)[:pairs]
        seconds += seconds[-1:] * (pairs - len(seconds))
        text = "".join(
            f"<|begin_of_image|>{IMAGE}<|end_of_image|>{self.stamp(second)}" for second in seconds
        )
        tokens = rows * columns // limits.merge_size**2
        return (pairs, rows, columns), tokens * pairs, Expansion(text, (tokens,) * pairs)

    def sample_frames(self, video: MediaInfo) -> Frames:
        return frames_used(video, self.sample)


def sample_by_rate(total: int, fps: float | None, *, rate: float, max_duration: float) -> Frames:
    """`Glm4vVideoProcessor.sample_frames`: `rate` frames per second, spread out in long videos.

    A video lasts as long as its frames: `total` / `fps` seconds.
    """
    fps = known_fps(fps)
    duration = total / fps
    if duration <= max_duration:
        num = max(math.floor(duration * rate), 1)
        wanted = np.ceil(np.arange(num) * fps / rate)
    else:
        num = int(max_duration * rate)
        if num >= total:
            wanted = np.arange(total, dtype=np.float64)
        else:
            wanted = np.ceil(np.linspace(0, duration, num, endpoint=True) * fps)
    return _distinct(np.minimum(wanted, total - 1).astype(np.int64))


MAX_SAMPLED = 640
LONGEST = 2400
RATES = ((30, 3.0), (300, 1.0), (LONGEST, 0.5))
"""Up to so many seconds, so many pairs of frames per second."""


def sample_by_duration(total: int, fps: float | None, *, temporal_patch_size: int) -> Frames:
    """`Glm46VVideoProcessor.sample_frames`: the longer a video, the fewer frames per second.

    Frames are taken at the first moments not before 0, s, 2s … seconds, at most one moment each,
    and taken anew at equal distances where that gives another number than intended.
    """
    fps = known_fps(fps)
    duration = total / fps
    lasting = min(duration, LONGEST)
    rate = next(rate for limit, rate in RATES if lasting <= limit)
    wanted = min(int(lasting * rate * temporal_patch_size), MAX_SAMPLED)
    if total < wanted:
        return _distinct(np.linspace(0, total - 1, wanted, dtype=int))
    # Moments are summed up one by one, as there: cumsum rounds as the sums do.
    step = 1 / (temporal_patch_size * rate)
    moments = np.cumsum(np.full(min(int(duration / step) + 2, total), step))
    num = int(np.searchsorted(moments, int(duration))) + 1
    moments = np.concatenate([[0.0], moments[: num - 1]])
    first = np.searchsorted(np.arange(total) * (1 / fps), moments)
    order = np.arange(num)
    taken = np.maximum.accumulate(first - order) + order
    taken = taken[taken < total]
    if len(taken) < wanted:
        taken = np.linspace(taken[0], taken[-1], wanted, dtype=int)
    elif len(taken) > wanted:
        taken = np.linspace(0, total - 1, wanted, dtype=int)
    return _distinct(taken)


def _distinct(frames: Frames) -> Frames:
    """Each frame once (they ascend), and the last one twice where their number is odd."""
    kept = np.unique(frames)
    return np.append(kept, kept[-1]) if len(kept) % 2 else kept


def _build(newer: bool, settings: Settings, video: Settings, own: Settings) -> GlmVision:
    """From the complete settings of image and video processor.

    Raises:
        SourceError: resizing is switched off, or limits are missing.
    """
    limits = PixelLimits(**pixel_limits(video, "video"))
    images = PixelLimits(**pixel_limits(settings, "image"))
    sample: Callable[[int, float | None], Frames] | None = None
    if video["do_sample_frames"] and newer:
        sample = partial(sample_by_duration, temporal_patch_size=limits.temporal_patch_size)
    elif video["do_sample_frames"]:
        rate, longest = video["fps"], video["max_duration"]
        sample = partial(sample_by_rate, rate=rate, max_duration=longest)
    return GlmVision(images, limits, sample, _tenths if newer else _whole_seconds)


def _whole_seconds(second: float) -> str:
    return str(int(second))


def _tenths(second: float) -> str:
    return f"{second:.1f} seconds"


# Class defaults of transformers 5.23: Glm4vImageProcessor and Glm4vVideoProcessor; GLM-4.6V's are
# the same.
_BOTH = {**CLIP_DEFAULTS, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
_IMAGE = {**_BOTH, "size": {"shortest_edge": 12_544, "longest_edge": 11_760_000}}
_VIDEO = {**_BOTH, "size": {"shortest_edge": 12_544, "longest_edge": 47_040_000}}
_VIDEO |= {"do_sample_frames": True, "num_frames": 16, "fps": 2, "max_duration": 300}
GLM4V = Family("glm4v", "Glm4vProcessor", _IMAGE, _VIDEO, partial(_build, False))
GLM46V = Family("glm46v", "Glm46VProcessor", _IMAGE, _VIDEO, partial(_build, True))
