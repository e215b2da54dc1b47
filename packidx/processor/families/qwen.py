"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images and videos keep their shape.

Sizes are `smart_resize`'s; merge_size² patches make a token. Qwen3.5 has Qwen3-VL's processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.arrays import Int64s
from packidx.errors import BadRecord
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    GRID_INPUTS,
    SIGLIP_DEFAULTS,
    Family,
    MediaCounts,
    Settings,
    VisionFamily,
    image_grids,
    no_video,
    refused,
)
from packidx.processor.families.qwen_video import (
    Qwen2Videos,
    Qwen3Videos,
    QwenVideos,
    build_videos,
)
from packidx.processor.families.shared.resize import PixelLimits, pixel_limits, smart_resize
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

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
        height, width = smart_resize(
            sizes[:, 0], sizes[:, 1], self.factor, self.min_pixels, self.max_pixels
        )
        return image_grids(height // self.patch_size, width // self.patch_size, self.merge_size)

    def count_videos(
        self, videos: Sequence[MediaInfo], samples: Int64s | None = None
    ) -> MediaCounts:
        if self.videos is None:
            return refused(len(videos), self._no_video)
        return self.videos.count(videos)

    @property
    def _no_video(self) -> BadRecord:
        return no_video(f"{self.family} without video settings")

    def sample_frames(self, video: MediaInfo) -> NDArray[np.int64]:
        if self.videos is None:
            raise self._no_video
        return self.videos.sample_frames(video)

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
