"""GLM-4.1V and GLM-4.6V: images keep their shape; a video is pairs of frames, each with its second.

transformers 5.23, `models/glm4v` and `models/glm46v`. A video's pixels are limited as a whole, so
that a longer one has smaller frames. Its features stand in for image tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from packidx.arrays import Int64s
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    GRID_INPUTS,
    Expansion,
    Family,
    FamilyMedia,
    ImageCounts,
    Settings,
    VideoCount,
)
from packidx.processor.families.frames import Frames, known_fps, timestamps, too_few_frames
from packidx.processor.families.sizes import PixelLimits, too_narrow
from packidx.records.conversation import MediaInfo

IMAGE = "<|image|>"
VIDEO = "<|video|>"
STAMPED = 2
"""Every second frame's time is written, whatever the temporal patch size."""


def _images(limits: PixelLimits, heights: Int64s, widths: Int64s, _: Int64s) -> ImageCounts:
    sides = limits.resized(limits.temporal_patch_size, heights, widths)
    return *limits.counts(*sides), None


def _video(
    limits: PixelLimits, stamp: Callable[[float], str], video: MediaInfo, frames: Frames
) -> VideoCount:
    if len(frames) < limits.temporal_patch_size:
        raise too_few_frames(len(frames), limits.temporal_patch_size)
    height, width = limits.resized(len(frames), video.height, video.width)
    if not height[0]:
        raise too_narrow(video)
    (_, rows, columns), tokens = limits.counts(int(height[0]), int(width[0]))
    pairs = -(-len(frames) // limits.temporal_patch_size)
    seconds = timestamps(frames[::STAMPED], video.fps)[:pairs]
    seconds += seconds[-1:] * (pairs - len(seconds))
    text = "".join(
        f"<|begin_of_image|>{IMAGE}<|end_of_image|>{stamp(second)}" for second in seconds
    )
    return (pairs, rows, columns), tokens * pairs, Expansion(text, (tokens,) * pairs)


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


def _whole_seconds(second: float) -> str:
    return str(int(second))


def _tenths(second: float) -> str:
    return f"{second:.1f} seconds"


def _build(newer: bool, image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    limits, videos = PixelLimits.of(image, "image"), PixelLimits.of(video, "video")
    sample: Callable[[int, float | None], Frames] | None = None
    if video["do_sample_frames"] and newer:
        sample = partial(sample_by_duration, temporal_patch_size=videos.temporal_patch_size)
    elif video["do_sample_frames"]:
        sample = partial(sample_by_rate, rate=video["fps"], max_duration=video["max_duration"])
    return FamilyMedia(
        name="glm46v" if newer else "glm4v",
        placeholders={"image": IMAGE, "video": VIDEO},
        feature=IMAGE,
        images=partial(_images, limits),
        video=partial(_video, videos, _tenths if newer else _whole_seconds),
        sample=sample,
        limits=limits,
        model_inputs=GRID_INPUTS,
        merge_size=limits.merge_size,
    )


# Class defaults of transformers 5.23: Glm4vImageProcessor and Glm4vVideoProcessor; GLM-4.6V's are
# the same.
_BOTH = {**CLIP_DEFAULTS, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
_IMAGE = {**_BOTH, "size": {"shortest_edge": 12_544, "longest_edge": 11_760_000}}
_VIDEO = {**_BOTH, "size": {"shortest_edge": 12_544, "longest_edge": 47_040_000}}
_VIDEO |= {"do_sample_frames": True, "num_frames": 16, "fps": 2, "max_duration": 300}
GLM4V = Family("glm4v", "Glm4vProcessor", _IMAGE, _VIDEO, partial(_build, False))
GLM46V = Family("glm46v", "Glm46VProcessor", _IMAGE, _VIDEO, partial(_build, True))
