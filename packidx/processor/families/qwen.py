"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V and GLM-4.6V: images and videos keep their shape.

Sizes are `smart_resize`'s; merge_size² patches make a token. Qwen3.5 has Qwen3-VL's processor.
Qwen3-VL's and GLM's videos are pairs of frames, each with its second, and their pixels are limited
as a whole, so that a longer one has smaller frames. The features of GLM's stand in for image
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import BadRecord, SourceError
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    GRID_INPUTS,
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    FamilyMedia,
    Frames,
    ImageCounts,
    PixelLimits,
    Settings,
    VideoCount,
    frame_seconds,
    known_fps,
    too_few_frames,
    unusable_size,
)
from packidx.records.conversation import MediaInfo

IMAGE, VIDEO, GLM_IMAGE = "<|image_pad|>", "<|video_pad|>", "<|image|>"
_EXACT = 1 << 53
"""Above it a product of sizes is not an exact float64."""


def _count_images(
    limits: PixelLimits, frames: int | None, heights: Int64s, widths: Int64s, _: Int64s
) -> ImageCounts:
    return *limits.counts(*limits.resized(heights, widths, frames)), None


def _pixel_cap(settings: Settings, limits: PixelLimits) -> int | None:
    """Pixels of `max_video_tokens`; None if they limit nothing."""
    caps = settings.get("cap_pixels_per_frame")
    return int(settings["max_video_tokens"]) * limits.factor**2 if caps else None


def _check_video(video: MediaInfo, frames: Frames, fewest: int) -> None:
    """Raise a BadRecord if a video is too large to be counted, or has too few frames."""
    if video.num_frames * video.height * video.width >= _EXACT:
        size = f"{video.num_frames} frames of {video.width}x{video.height} pixels"
        raise BadRecord("media_too_large", f"a video of {size}")
    if len(frames) < fewest:
        raise too_few_frames(len(frames), fewest)


def _video_count(
    limits: PixelLimits, num_frames: int, video: MediaInfo, sides: tuple[Int64s, Int64s]
) -> tuple[tuple[int, int, int], int]:
    """Return the grid of so many frames of these sides ``[1]`` in pixels, and tokens per step."""
    height, width = (int(side[0]) for side in sides)
    if not height:
        raise unusable_size(video.height, video.width, "a video")
    (_, rows, columns), tokens = limits.counts(height, width)
    return (-(-num_frames // limits.temporal_patch_size), rows, columns), tokens


# -- Qwen2-VL, Qwen2.5-VL: `Qwen2VLVideoProcessor` ------------------------------------------------


def _qwen2_video(
    limits: PixelLimits, settings: Settings, video: MediaInfo, frames: Frames
) -> VideoCount:
    _check_video(video, frames, 1)
    limit, cap = limits.max_pixels, _pixel_cap(settings, limits)
    if cap is not None:
        share = int(cap * 0.9) * limits.temporal_patch_size // len(frames)
        limit = max(min(limit, share), int(limits.min_pixels * 1.05))
    sides = limits.resized(video.height, video.width, max_pixels=limit)
    grid, tokens = _video_count(limits, len(frames), video, sides)
    return grid, grid[0] * tokens, None


def _qwen2_sample(settings: Settings, total: int, fps: float | None) -> Frames:
    step, wanted_fps = settings["temporal_patch_size"], settings.get("fps")
    if wanted_fps is None:
        num = round(settings["num_frames"] / step) * step
    else:
        most = math.floor(min(settings["max_frames"], total) / step) * step
        wanted = max(total / known_fps(fps) * wanted_fps, settings["min_frames"])
        num = math.floor(min(wanted, most, total) / step) * step
    if not 0 < num <= total:
        raise too_few_frames(total, max(num, step))
    # There, `torch.arange(0, total, total / num).int()`: float32, one frame too many where the
    # quotient is rounded down, and that is beyond the end. Its vectorised loop also rounds
    # differently with each CPU's vector width, which moves a frame by one in 0.02 % of cases.
    frames: Frames = (np.arange(num) * (total / num)).astype(np.float32).astype(np.int64)
    return frames


# -- Qwen3-VL: `Qwen3VLVideoProcessor`, and what `Qwen3VLProcessor` writes ------------------------


def _qwen3_video(
    limits: PixelLimits, settings: Settings, video: MediaInfo, frames: Frames
) -> VideoCount:
    size, num = limits.temporal_patch_size, len(frames)
    _check_video(video, frames, size)
    limit, cap = None, _pixel_cap(settings, limits)
    if cap is not None:
        frame = min(cap, limits.max_pixels // num)
        limit = max(frame, int(limits.min_pixels * 1.05)) * num
    sides = limits.resized(video.height, video.width, num, limit)
    grid, tokens = _video_count(limits, num, video, sides)
    frames = np.append(frames, np.repeat(frames[-1:], -num % size))
    first = frame_seconds(frames[::size], video.fps)
    last = frame_seconds(frames[size - 1 :: size], video.fps)
    text = "".join(
        f"<{(a + b) / 2:.1f} seconds><|vision_start|>{VIDEO}<|vision_end|>"
        for a, b in zip(first, last, strict=True)
    )
    return grid, grid[0] * tokens, Expansion(text, (tokens,) * len(first))


def _qwen3_sample(settings: Settings, total: int, fps: float | None) -> Frames:
    wanted = int(total / known_fps(24 if fps is None else fps) * (settings.get("fps") or 0))
    num = min(max(wanted, settings["min_frames"]), settings["max_frames"], total)
    frames: Frames = np.linspace(0, total - 1, num).round().astype(np.int64)
    return frames


# Class defaults of transformers 5.23: Qwen2VLImageProcessor, Qwen2VLVideoProcessor and
# Qwen3VLVideoProcessor.
_MERGED: dict[str, Any] = {"temporal_patch_size": 2, "merge_size": 2}
_QWEN2_IMAGE = {**CLIP_DEFAULTS, **_MERGED, "patch_size": 14}
_QWEN2_IMAGE |= {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}
_VIDEO = {**CLIP_DEFAULTS, **_MERGED, "min_frames": 4, "max_frames": 768}
_VIDEO |= {"cap_pixels_per_frame": None}
_QWEN2_VIDEO = {**_VIDEO, "patch_size": 14, "max_video_tokens": 128_000}
_QWEN2_VIDEO |= {"do_sample_frames": False}
_QWEN2_VIDEO |= {"size": {"shortest_edge": 100_352, "longest_edge": 602_112}}
_QWEN3_VIDEO = {**_VIDEO, **SIGLIP_DEFAULTS, "patch_size": 16, "max_video_tokens": 768}
_QWEN3_VIDEO |= {"fps": 2, "do_sample_frames": True}
_QWEN3_VIDEO |= {"size": {"shortest_edge": 131_072, "longest_edge": 786_432}}
_ROPE_MODELS = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}


def _sample_as(is_newer: bool, video: Settings, asked: Settings) -> Callable[..., Frames] | None:
    """Return the sampling of a video with options of its own; None if the processor does not take
    them for one call: Qwen3-VL's goes by its own ``min_frames`` and ``max_frames``."""
    settings = dict(video)
    if is_newer and not asked.keys() <= {"fps", "nframes"}:
        return None
    if "nframes" in asked:
        settings |= {"fps": None, "num_frames": asked["nframes"]}
    elif "fps" in asked or video.get("num_frames") is None:
        settings |= {"fps": asked.get("fps", video.get("fps") or 2), "num_frames": None}
    settings |= {name: asked[name] for name in ("min_frames", "max_frames") if name in asked}
    if is_newer and settings["num_frames"] is not None:
        return partial(_sample_evenly, settings["num_frames"])
    return partial(_qwen3_sample if is_newer else _qwen2_sample, settings)


def _sample_evenly(num: int, total: int, _: float | None) -> Frames:
    if num > total:
        raise too_few_frames(total, num)
    frames: Frames = np.linspace(0, total - 1, num).round().astype(np.int64)
    return frames


def _build_qwen(name: str, image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    limits = PixelLimits.of(image, "image")
    count, sample, sample_as = None, None, None
    if video:
        is_newer, fps, num = name == "qwen3_vl", video.get("fps"), video.get("num_frames")
        of_video = PixelLimits.of(video, "video")
        count = partial(_qwen3_video if is_newer else _qwen2_video, of_video, dict(video))
        sample_as = partial(_sample_as, is_newer, dict(video))
        if video["do_sample_frames"]:
            if (fps is None) is (num is None):
                raise SourceError(
                    f"its video settings sample frames by fps {fps} and num_frames {num}: "
                    "set one of them"
                )
            sample = partial(_qwen3_sample if is_newer else _qwen2_sample, dict(video))
    return FamilyMedia(
        name=name if video else f"{name} without video settings",
        placeholders={"image": IMAGE, "video": VIDEO},
        images=partial(_count_images, limits, None),
        video=count,
        sample=sample,
        sample_as=sample_as,
        limits=limits,
        model_inputs=GRID_INPUTS + (("second_per_grid_ts",) if name == "qwen2_5_vl" else ()),
        merge_size=limits.merge_size,
        rope_model=_ROPE_MODELS.get(name),
    )


def _make_family(name: str, processor_class: str, video: dict[str, Any]) -> Family:
    # `Qwen3VLVideoProcessor` does not read them.
    older_names = ("images",) if name == "qwen3_vl" else ("images", "videos")
    build = partial(_build_qwen, name)
    return Family(name, processor_class, _QWEN2_IMAGE, video, build, older_names=older_names)


QWEN2_VL = _make_family("qwen2_vl", "Qwen2VLProcessor", _QWEN2_VIDEO)
QWEN2_5_VL = _make_family("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN2_VIDEO)
QWEN3_VL = _make_family("qwen3_vl", "Qwen3VLProcessor", _QWEN3_VIDEO)


# -- GLM-4.1V, GLM-4.6V: transformers 5.23, `models/glm4v` and `models/glm46v` ---------------------

STAMPED = 2
"""Every second frame's time is written, whatever the temporal patch size."""


def _glm_video(limits: PixelLimits, stamp: str, video: MediaInfo, frames: Frames) -> VideoCount:
    _check_video(video, frames, limits.temporal_patch_size)
    sides = limits.resized(video.height, video.width, len(frames))
    grid, tokens = _video_count(limits, len(frames), video, sides)
    pairs = grid[0]
    seconds = frame_seconds(frames[::STAMPED], video.fps)[:pairs]
    seconds += seconds[-1:] * (pairs - len(seconds))
    text = "".join(
        f"<|begin_of_image|>{GLM_IMAGE}<|end_of_image|>{stamp.format(int(second), second)}"
        for second in seconds
    )
    return grid, tokens * pairs, Expansion(text, (tokens,) * pairs)


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
    return _pair_distinct(np.minimum(wanted, total - 1).astype(np.int64))


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
        return _pair_distinct(np.linspace(0, total - 1, wanted, dtype=int))
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
    return _pair_distinct(taken)


def _pair_distinct(frames: Frames) -> Frames:
    """Each frame once (they ascend), and the last one twice where their number is odd."""
    kept = np.unique(frames)
    return np.append(kept, kept[-1]) if len(kept) % 2 else kept


def _build_glm(newer: bool, image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    limits, videos = PixelLimits.of(image, "image"), PixelLimits.of(video, "video")
    sample: Callable[[int, float | None], Frames] | None = None
    if video["do_sample_frames"] and newer:
        sample = partial(sample_by_duration, temporal_patch_size=videos.temporal_patch_size)
    elif video["do_sample_frames"]:
        sample = partial(sample_by_rate, rate=video["fps"], max_duration=video["max_duration"])
    return FamilyMedia(
        name="glm46v" if newer else "glm4v",
        placeholders={"image": GLM_IMAGE, "video": "<|video|>"},
        feature=GLM_IMAGE,
        images=partial(_count_images, limits, limits.temporal_patch_size),
        video=partial(_glm_video, videos, "{1:.1f} seconds" if newer else "{0}"),
        sample=sample,
        limits=limits,
        model_inputs=GRID_INPUTS,
        merge_size=limits.merge_size,
    )


# Class defaults of transformers 5.23: Glm4vImageProcessor and Glm4vVideoProcessor; GLM-4.6V's are
# the same.
_GLM = {**CLIP_DEFAULTS, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
_GLM_IMAGE = {**_GLM, "size": {"shortest_edge": 12_544, "longest_edge": 11_760_000}}
_GLM_VIDEO = {**_GLM, "size": {"shortest_edge": 12_544, "longest_edge": 47_040_000}}
_GLM_VIDEO |= {"do_sample_frames": True, "num_frames": 16, "fps": 2, "max_duration": 300}
GLM4V = Family("glm4v", "Glm4vProcessor", _GLM_IMAGE, _GLM_VIDEO, partial(_build_glm, False))
GLM46V = Family("glm46v", "Glm46VProcessor", _GLM_IMAGE, _GLM_VIDEO, partial(_build_glm, True))
