"""Which frames of a video are used, and when they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import BadRecord
from packidx.records.conversation import MediaInfo

Frames = Int64s
"""Numbers of frames."""

UNKNOWN_FPS = 24.0
"""What transformers' processors take for timestamps where the frame rate is not known."""
MAX_FRAMES = 10_000_000
"""92 hours at 30 frames per second; a header or record that claims more is wrong."""
MIN_FPS = 0.001
"""Less is not a frame rate: durations stay finite, and timestamps those of a calendar."""


def frames_used(video: MediaInfo, sample: Callable[[int, float | None], Frames] | None) -> Frames:
    """``[f]`` numbers of the frames that are used.

    Frames that the record names are taken as they are, extracted ones are all taken; else `sample`
    (number of frames, frames per second) chooses, and without it all are taken.

    Raises:
        BadRecord: ``broken_media``, ``media_too_large``, ``too_few_frames`` or as `sample`.
    """
    if max(video.num_frames, *(video.frame_indices or ()), 0) > MAX_FRAMES:
        raise BadRecord("media_too_large", f"a video of over {MAX_FRAMES:,} frames")
    if video.height <= 0 or video.width <= 0 or video.num_frames <= 0:
        size = f"{video.width}x{video.height} pixels and {video.num_frames} frames"
        raise BadRecord("broken_media", f"a video of {size}")
    if video.frame_indices is not None:
        frames = np.asarray(video.frame_indices, np.int64)
        last = -1 if video.extracted else video.num_frames - 1
        if len(frames) and (frames.min() < 0 or frames.max() > last >= 0):
            named = f"frames {frames.min()} to {frames.max()} are named"
            raise BadRecord("broken_media", f"{named} of a video of {video.num_frames} frames")
    elif video.extracted or sample is None:
        frames = np.arange(video.num_frames, dtype=np.int64)
    else:
        frames = sample(video.num_frames, video.fps)
    if not len(frames):
        raise too_few_frames(video.num_frames)
    return frames


def timestamps(frames: Frames, fps: float | None) -> list[float]:
    """Seconds at which `frames` are shown (transformers 5.23, `VideoMetadata.timestamps`).

    Raises:
        BadRecord: as `known_fps`, but a rate of None is taken to be `UNKNOWN_FPS`.
    """
    seconds: list[float] = (frames / (UNKNOWN_FPS if fps is None else known_fps(fps))).tolist()
    return seconds


def known_fps(fps: float | None) -> float:
    """The frame rate, where frames are sampled by time or have timestamps.

    Raises:
        BadRecord: ``unknown_fps`` where it is None, infinite or below `MIN_FPS`.
    """
    if fps is None or not MIN_FPS <= fps < math.inf:
        text = f"a video's frame rate is {fps}, but its processor goes by time: state its fps"
        raise BadRecord("unknown_fps", text)
    return fps


def too_few_frames(num_frames: int, needed: int | None = None) -> BadRecord:
    """Why a video is too short for its processor."""
    least = "more" if needed is None else str(needed)
    text = f"a video of {num_frames} frames, but its processor needs {least}"
    return BadRecord("too_few_frames", text)


def sample_evenly(
    num_frames: int | None, wanted_fps: float | None, total: int, fps: float | None
) -> Frames:
    """Frames at equal distances: transformers 5.23, `video_utils.default_sample_indices_fn`.

    Args:
        num_frames: how many to take; None goes by `wanted_fps`, and without both all are taken.
        wanted_fps: frames to take per second.
        total: frames of the video.
        fps: its frames per second.

    Raises:
        BadRecord: ``too_few_frames``, or as `known_fps`.
    """
    if num_frames is None and wanted_fps is not None:
        num_frames = max(1, int(total / known_fps(fps) * wanted_fps))
    if num_frames is None:
        return np.arange(total)
    if num_frames > total:
        raise too_few_frames(total, num_frames)
    frames: Frames = np.arange(num_frames) * total // num_frames
    return frames
