"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images and videos keep their shape.

Sizes are `smart_resize`'s; merge_size² patches make a token. Qwen3.5 has Qwen3-VL's processor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
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
    ImageCounts,
    Settings,
    VideoCount,
    VisionFamily,
    no_video,
)
from packidx.processor.families.shared import (
    Frames,
    PixelLimits,
    frames_used,
    known_fps,
    pixel_limits,
    smart_resize,
    timestamps,
    too_few_frames,
    too_narrow,
)
from packidx.records.conversation import MediaInfo


@dataclass(frozen=True, slots=True)
class QwenVision(PixelLimits, VisionFamily):
    """A Qwen processor."""

    family: str
    videos: QwenVideos | None = None
    """None where no video settings are known."""
    image_token: str = "<|image_pad|>"
    video_token: str = "<|video_pad|>"

    @property
    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.image_token, "video": self.video_token}

    @property
    def model_inputs(self) -> tuple[str, ...]:
        more = ("second_per_grid_ts",) if self.family == "qwen2_5_vl" else ()
        return GRID_INPUTS + more

    @property
    def mrope_merge_size(self) -> int:
        return self.merge_size

    @property
    def rope_model(self) -> str | None:
        models = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}
        return models.get(self.family)

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        limits = self.min_pixels, self.max_pixels
        height, width = smart_resize(heights, widths, self.factor, *limits)
        tokens = (height // self.factor) * (width // self.factor)
        return (1, height // self.patch_size, width // self.patch_size), tokens, None

    def _count_video(self, video: MediaInfo) -> VideoCount:
        return self._known_videos().count(video)

    def sample_frames(self, video: MediaInfo) -> Frames:
        return self._known_videos().sample_frames(video)

    def _known_videos(self) -> QwenVideos:
        """
        Raises:
            BadRecord: no video settings are known.
        """
        if self.videos is None:
            raise no_video(f"{self.family} without video settings")
        return self.videos

    @classmethod
    def from_settings(
        cls, family: str, settings: Settings, video: Settings, own: Settings
    ) -> QwenVision:
        """From the complete settings of an image and a video processor.

        Raises:
            SourceError: they switch resizing off or lack the limits of an image's pixels.
        """
        kind = Qwen3Videos if family == "qwen3_vl" else Qwen2Videos
        return cls(
            **pixel_limits(settings, "image"),
            family=family,
            videos=build_videos(kind, video) if video else None,
        )


# Class defaults of transformers 5.23: Qwen2VLImageProcessor, Qwen2VLVideoProcessor and
# Qwen3VLVideoProcessor.
_MERGED: dict[str, Any] = {"temporal_patch_size": 2, "merge_size": 2}
_QWEN2_IMAGE = {**CLIP_DEFAULTS, **_MERGED, "patch_size": 14}
_QWEN2_IMAGE |= {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}}
_VIDEO = {**CLIP_DEFAULTS, **_MERGED, "min_frames": 4, "max_frames": 768}
_QWEN2_VIDEO = {**_VIDEO, "patch_size": 14, "max_video_tokens": 128_000}
_QWEN2_VIDEO |= {"do_sample_frames": False}
_QWEN2_VIDEO |= {"size": {"shortest_edge": 100_352, "longest_edge": 602_112}}
_QWEN3_VIDEO = {**_VIDEO, **SIGLIP_DEFAULTS, "patch_size": 16, "max_video_tokens": 768}
_QWEN3_VIDEO |= {"fps": 2, "do_sample_frames": True}
_QWEN3_VIDEO |= {"size": {"shortest_edge": 131_072, "longest_edge": 786_432}}


def _family(name: str, processor_class: str, video: dict[str, Any]) -> Family:
    build = partial(QwenVision.from_settings, name)
    # `Qwen3VLVideoProcessor` does not read them.
    older_names = ("images",) if name == "qwen3_vl" else ("images", "videos")
    return Family(name, processor_class, _QWEN2_IMAGE, video, build, older_names=older_names)


QWEN2_VL = _family("qwen2_vl", "Qwen2VLProcessor", _QWEN2_VIDEO)
QWEN2_5_VL = _family("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN2_VIDEO)
QWEN3_VL = _family("qwen3_vl", "Qwen3VLProcessor", _QWEN3_VIDEO)


_EXACT = 1 << 53
"""Above it a product of sizes is no exact float64."""


@dataclass(frozen=True, slots=True)
class QwenVideos(PixelLimits, ABC):
    """A Qwen video processor."""

    do_sample_frames: bool
    """Whether frames are sampled; else all are taken."""
    fps: float | None
    """Frames to take per second."""
    num_frames: int | None
    """Frames to take, whatever the duration."""
    min_frames: int
    max_frames: int
    token_cap: int | None
    """`max_video_tokens` where `cap_pixels_per_frame`."""

    def sample_frames(self, video: MediaInfo) -> Frames:
        """See `VisionFamily.sample_frames`.

        Raises:
            BadRecord: as `frames_used`.
        """
        return frames_used(video, self._sample if self.do_sample_frames else None)

    def count(self, video: MediaInfo) -> VideoCount:
        """Return what a video becomes.

        Raises:
            BadRecord: ``media_too_large``, ``too_few_frames``, ``aspect_ratio``, or as
                `sample_frames`.
        """
        if video.num_frames * video.height * video.width >= _EXACT:
            size = f"{video.num_frames} frames of {video.width}x{video.height} pixels"
            raise BadRecord("media_too_large", f"a video of {size}")
        frames = self.sample_frames(video)
        if len(frames) < self.fewest:
            raise too_few_frames(len(frames), self.fewest)
        height, width = (int(side[0]) for side in self._resized(len(frames), video))
        if not height:
            raise too_narrow(video)
        steps = -(-len(frames) // self.temporal_patch_size)
        tokens = (height // self.factor) * (width // self.factor)
        grid = steps, height // self.patch_size, width // self.patch_size
        return grid, steps * tokens, self._expansion(frames, video.fps, tokens)

    @property
    def fewest(self) -> int:
        """Frames that a video must have."""
        return 1

    @abstractmethod
    def _sample(self, total: int, fps: float | None) -> Frames:
        """The processor's own `sample_frames`."""

    @abstractmethod
    def _resized(self, num_frames: int, video: MediaInfo) -> tuple[Int64s, Int64s]:
        """Return height and width in pixels ``[1]`` of so many frames, 0 where impossible."""

    def _expansion(self, frames: Frames, fps: float | None, tokens: int) -> Expansion | None:
        """Return what is written for a video of so many tokens per step; None where its feature
        token alone is repeated."""
        return None


class Qwen2Videos(QwenVideos):
    """`Qwen2VLVideoProcessor`."""

    __slots__ = ()

    def _sample(self, total: int, fps: float | None) -> Frames:
        step = self.temporal_patch_size
        if self.fps is None:
            num = round((self.num_frames or 0) / step) * step
        else:
            most = math.floor(min(self.max_frames, total) / step) * step
            wanted = total / known_fps(fps) * self.fps
            num = math.floor(min(max(wanted, self.min_frames), most, total) / step) * step
        if not 0 < num <= total:
            raise too_few_frames(total, max(num, step))
        # There, `torch.arange(0, total, total / num).int()`: float32, one frame too many where the
        # quotient is rounded down, and that is beyond the end. Its vectorised loop also rounds
        # differently with each CPU's vector width, which moves a frame by one in 0.02 % of cases.
        return (np.arange(num) * (total / num)).astype(np.float32).astype(np.int64)

    def _resized(self, num_frames: int, video: MediaInfo) -> tuple[Int64s, Int64s]:
        limit = self.max_pixels
        if self.token_cap is not None:
            total = int(self.token_cap * self.factor * self.factor * 0.9)
            share = total * self.temporal_patch_size // num_frames
            limit = max(min(limit, share), int(self.min_pixels * 1.05))
        return smart_resize(video.height, video.width, self.factor, self.min_pixels, limit)


class Qwen3Videos(QwenVideos):
    """`Qwen3VLVideoProcessor`, and what `Qwen3VLProcessor` writes."""

    __slots__ = ()

    def _sample(self, total: int, fps: float | None) -> Frames:
        wanted = int(total / known_fps(24 if fps is None else fps) * (self.fps or 0))
        num = min(max(wanted, self.min_frames), self.max_frames, total)
        return np.linspace(0, total - 1, num).round().astype(np.int64)

    @property
    def fewest(self) -> int:
        return self.temporal_patch_size

    def _resized(self, num_frames: int, video: MediaInfo) -> tuple[Int64s, Int64s]:
        limit = None
        if self.token_cap is not None:
            cap = self.token_cap * self.factor * self.factor
            frame = min(cap, self.max_pixels // num_frames)
            limit = max(frame, int(self.min_pixels * 1.05)) * num_frames
        return self.resized(num_frames, video.height, video.width, limit)

    def _expansion(self, frames: Frames, fps: float | None, tokens: int) -> Expansion:
        size = self.temporal_patch_size
        frames = np.append(frames, np.repeat(frames[-1:], -len(frames) % size))
        first, last = timestamps(frames[::size], fps), timestamps(frames[size - 1 :: size], fps)
        text = "".join(
            f"<{(a + b) / 2:.1f} seconds><|vision_start|><|video_pad|><|vision_end|>"
            for a, b in zip(first, last, strict=True)
        )
        return Expansion(text, (tokens,) * len(first))


def build_videos(kind: type[QwenVideos], settings: Settings) -> QwenVideos:
    """From a video processor's complete settings.

    Raises:
        SourceError: they switch resizing off, lack the limits of pixels, or do not say how frames
            are sampled.
    """
    limits = pixel_limits(settings, "video")
    fps, num_frames = settings.get("fps"), settings.get("num_frames")
    if settings["do_sample_frames"] and (fps is None) is (num_frames is None):
        raise SourceError(
            f"its video settings sample frames by fps {fps} and num_frames {num_frames}: "
            "set one of them"
        )
    cap = settings.get("cap_pixels_per_frame")
    return kind(
        **limits,
        do_sample_frames=bool(settings["do_sample_frames"]),
        fps=fps,
        num_frames=num_frames,
        min_frames=int(settings["min_frames"]),
        max_frames=int(settings["max_frames"]),
        token_cap=int(settings["max_video_tokens"]) if cap else None,
    )
