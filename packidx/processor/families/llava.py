"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: a whole image, and for the latter two its tiles, too.

LLaVA-NeXT cuts an image into tiles of the grid that fits it best; rows and columns that are padding
only become no tokens, and one more token ends each row. LLaVA-OneVision shrinks what is then too
much, takes tiles only where a sample has a single image, and has video: frames pooled by two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    Family,
    ImageCounts,
    Settings,
    VideoCount,
    VisionFamily,
    no_video,
)
from packidx.processor.families.shared import (
    Frames,
    best_resolution,
    frames_used,
    must_resize,
    needed,
    sample_evenly,
    square_side,
)
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

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        return (1, self.patches, self.patches), self.base_tokens - self.dropped, None


@dataclass(frozen=True, slots=True)
class TiledLlavaVision(LlavaVision):
    """A LLaVA-NeXT or LLaVA-OneVision processor."""

    same_num_frames: ClassVar[bool] = True

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

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        rows, columns = best_resolution(heights, widths, self.resolutions)
        rows, columns = rows // self.side, columns // self.side
        whole = self.base_tokens - self.dropped
        tokens = whole + self._tile_tokens(heights, widths, rows, columns)
        num_tiles = rows * columns + 1
        if self.video_token is not None:
            # LLaVA-OneVision takes tiles only where a sample has a single image.
            is_shared = np.bincount(samples)[samples] > 1
            tokens[is_shared] = whole + 1  # the row of one tile has an end
            num_tiles[is_shared] = 1
        return (num_tiles, self.patches, self.patches), tokens, None

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

    def _count_video(self, video: MediaInfo) -> VideoCount:
        if self.video_token is None:
            raise no_video(self.family)
        num_frames = len(self.sample_frames(video))
        tokens = num_frames * math.ceil(self.patches / 2) ** 2 + 1
        return (num_frames, self.patches, self.patches), tokens, None

    def sample_frames(self, video: MediaInfo) -> Frames:
        if self.sampling is None:
            return frames_used(video, None)
        num_frames, fps = self.sampling.get("num_frames"), self.sampling.get("fps")
        return frames_used(video, partial(sample_evenly, num_frames=num_frames, wanted_fps=fps))


def _of_tile(own: Settings, side: int) -> dict[str, Any]:
    """Return what LLaVA's and LLaVA-NeXT's own settings say of a tile of `side` pixels."""
    patches = side // needed(own, "patch_size")
    tokens = patches**2 + int(own.get("num_additional_image_tokens") or 0)
    return {"patches": patches, "base_tokens": tokens, **_of_image(own)}


def _of_image(own: Settings) -> dict[str, Any]:
    """Return what the own settings of all three say of any image."""
    return {
        "dropped": int(own.get("vision_feature_select_strategy") == "default"),
        "image_token": str(own.get("image_token") or "<image>"),
    }


def _build_llava(image: Settings, video: Settings, own: Settings) -> LlavaVision:
    size, name = image.get("size") or {}, "size"
    if image.get("do_center_crop"):
        size, name = image.get("crop_size") or {}, "crop_size"
    elif not image.get("do_resize") or ("shortest_edge" in size and not image.get("do_pad")):
        raise SourceError(
            "its images do not all become squares of one size: set do_center_crop and crop_size"
        )
    return LlavaVision("llava", **_of_tile(own, square_side(size, name)))


def _tile_side(image: Settings) -> int:
    """Pixels per side of a tile.

    Raises:
        SourceError: tiles of another size, or cut images, are asked for.
    """
    side = square_side(image.get("size"), "size")
    crop = image.get("crop_size")
    must_resize(image)
    if (crop or image.get("do_center_crop")) and square_side(crop, "crop_size") != side:
        raise SourceError(
            f"its image settings have size {side} but crop_size {crop}: they must be the same"
        )
    return side


def _resolutions(image: Settings, side: int) -> tuple[tuple[int, int], ...]:
    given = image.get("image_grid_pinpoints") or []
    pairs = tuple((int(height), int(width)) for height, width in given)
    if not pairs or any(edge % side or edge <= 0 for pair in pairs for edge in pair):
        raise SourceError(
            f"its image settings have image_grid_pinpoints {given}: "
            f"each must be of whole tiles of {side} pixels"
        )
    return pairs


def _build_next(image: Settings, video: Settings, own: Settings) -> TiledLlavaVision:
    side = _tile_side(image)
    return TiledLlavaVision(
        "llava_next",
        **_of_tile(own, side),
        model_inputs=("pixel_values", "image_sizes"),
        side=side,
        resolutions=_resolutions(image, side),
    )


def _build_onevision(image: Settings, video: Settings, own: Settings) -> TiledLlavaVision:
    side = _tile_side(image)
    tokens = needed(own, "num_image_tokens")
    patches = math.isqrt(tokens)
    ratio = str(own.get("vision_aspect_ratio") or "anyres_max_9")
    if patches**2 != tokens:
        raise SourceError(f"its processor_config.json has num_image_tokens {tokens}: no square")
    if not ratio.startswith("anyres_max_") or not ratio[len("anyres_max_") :].isdigit():
        raise SourceError(f"its processor_config.json has vision_aspect_ratio {ratio!r}: unknown")
    if square_side(video.get("size"), "video size") != side:
        raise SourceError(f"its video frames must be {side} pixels a side as its image tiles are")
    sampling = video if video.get("do_sample_frames") else None
    if sampling and sampling.get("fps") and sampling.get("num_frames"):
        raise SourceError("its video settings have fps and num_frames: leave one out")
    return TiledLlavaVision(
        "llava_onevision",
        patches=patches,
        base_tokens=tokens,
        **_of_image(own),
        model_inputs=("pixel_values", "image_sizes", "batch_num_images", "pixel_values_videos"),
        side=side,
        resolutions=_resolutions(image, side),
        max_tiles=int(ratio[len("anyres_max_") :]),
        video_token=str(own.get("video_token") or "<video>"),
        sampling=sampling,
    )


# Class defaults of transformers 5.23: LlavaNextImageProcessor, LlavaOnevisionImageProcessor and
# LlavaOnevisionVideoProcessor.
_NEXT_IMAGE = {
    **CLIP_DEFAULTS,
    "do_pad": True,
    "do_center_crop": True,
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}
_EDGES = range(384, 2305, 384)
_ONEVISION_IMAGE = {**CLIP_DEFAULTS, "do_pad": True, "size": {"height": 384, "width": 384}}
_ONEVISION_IMAGE |= {"image_grid_pinpoints": [[h, w] for h in _EDGES for w in _EDGES]}
_ONEVISION_VIDEO = {
    **CLIP_DEFAULTS,
    "size": {"height": 384, "width": 384},
    "do_sample_frames": False,
}
_ALL = {"image_token": "<image>", "vision_feature_select_strategy": None}
_OWN = {**_ALL, "patch_size": None, "num_additional_image_tokens": 0}

LLAVA = Family(
    "llava",
    "LlavaProcessor",
    {},  # its image processor may be of any class (CLIP's, SigLIP's): nothing can be assumed
    {},
    _build_llava,
    own_defaults=_OWN,
)
LLAVA_NEXT = Family(
    "llava_next",
    "LlavaNextProcessor",
    _NEXT_IMAGE,
    {},
    _build_next,
    own_defaults=_OWN,
)
LLAVA_ONEVISION = Family(
    "llava_onevision",
    "LlavaOnevisionProcessor",
    _ONEVISION_IMAGE,
    _ONEVISION_VIDEO,
    _build_onevision,
    own_defaults={
        **_ALL,
        "num_image_tokens": None,
        "video_token": "<video>",
        "vision_aspect_ratio": "anyres_max_9",
    },
)
