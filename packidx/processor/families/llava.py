"""LLaVA, LLaVA-NeXT, LLaVA-OneVision, Gemma 3: a whole image, and of two of them its tiles, too.

LLaVA and Gemma 3 make every image one square. Gemma 3's pan and scan, which crops images far from
square, is taken from the processor's `images_kwargs` alone: no folder can switch it on, and a
processor object that has it is counted by probing it.

LLaVA-NeXT cuts an image into tiles of the grid that fits it best; rows and columns that are padding
only become no tokens, and one more token ends each row. LLaVA-OneVision shrinks what is then too
much, takes tiles only where a sample has a single image, and has video: frames pooled by two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    FamilyMedia,
    Frames,
    ImageCounts,
    Settings,
    VideoCount,
    best_resolution,
    known_fps,
    must_resize,
    patches_per_side,
    read_positive_int,
    square_side,
    too_few_frames,
)
from packidx.records.conversation import MediaInfo

_BEGIN, _SOFT = "<start_of_image>", "<image_soft_token>"  # of Gemma 3


def _count_squares(
    patches: int, tokens: int, expansion: Expansion | None, heights: Int64s, *_: Int64s
) -> ImageCounts:
    """Return what LLaVA's and Gemma 3's images become: every one the same square."""
    return (1, patches, patches), tokens, [expansion] * len(heights)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Numbers of LLaVA-NeXT and LLaVA-OneVision."""

    patches: int
    """Per side of a tile."""
    tokens: int
    """Tokens of a whole image that is one tile."""
    side: int
    """Pixels per side of a tile."""
    resolutions: tuple[tuple[int, int], ...]
    """(height, width) in pixels that an image's tiles may make up."""
    max_tiles: int | None = None
    """LLaVA-OneVision's: tiles whose tokens an image may have before they are shrunk."""


def _count_tiled(own: _Tiles, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
    rows, columns = best_resolution(heights, widths, own.resolutions)
    rows, columns = rows // own.side, columns // own.side
    tokens = own.tokens + _tile_tokens(own, heights, widths, rows, columns)
    num_tiles = rows * columns + 1
    if own.max_tiles is not None:
        # LLaVA-OneVision takes tiles only where a sample has a single image.
        is_shared = np.bincount(samples)[samples] > 1
        tokens[is_shared] = own.tokens + 1  # the row of one tile has an end
        num_tiles[is_shared] = 1
    return (num_tiles, own.patches, own.patches), tokens, None


def _tile_tokens(
    own: _Tiles, heights: Int64s, widths: Int64s, rows: Int64s, columns: Int64s
) -> Int64s:
    """Tokens of images' tiles, `rows` x `columns` of them, and of the ends of their rows.

    transformers 5.23, `_get_unpadded_features` of both processors, for n images at once.
    """
    height, width = own.patches * rows, own.patches * columns
    wider = widths / heights > width / height
    with_rows = np.floor(np.round(heights * (width / widths), 7)).astype(np.int64)
    with_columns = np.floor(np.round(widths * (height / heights), 7)).astype(np.int64)
    height, width = (
        np.where(wider, height - (height - with_rows) // 2 * 2, height),
        np.where(wider, width, width - (width - with_columns) // 2 * 2),
    )
    if own.max_tiles is not None:
        ratio = np.sqrt(height * width / (own.max_tiles * own.patches**2))
        shrunk = ratio > 1.1
        ratio = np.where(shrunk, ratio, 1.0)
        height = np.where(shrunk, np.floor_divide(height, ratio), height).astype(np.int64)
        width = np.where(shrunk, np.floor_divide(width, ratio), width).astype(np.int64)
    return height * width + height


def _sample_evenly(
    num_frames: int | None, wanted_fps: float | None, total: int, fps: float | None
) -> Frames:
    """`video_utils.default_sample_indices_fn` of transformers 5.23: `num_frames` frames at equal
    distances, or `wanted_fps` in a second; all if both are None."""
    if num_frames is None and wanted_fps is not None:
        num_frames = max(1, int(total / known_fps(fps) * wanted_fps))
    if num_frames is None:
        return np.arange(total)
    if num_frames > total:
        raise too_few_frames(total, num_frames)
    frames: Frames = np.arange(num_frames) * total // num_frames
    return frames


def _count_video(patches: int, video: MediaInfo, frames: Frames) -> VideoCount:
    num = len(frames)
    return (num, patches, patches), num * math.ceil(patches / 2) ** 2 + 1, None


def _of_tile(own: Settings, side: int) -> tuple[int, int]:
    """Return patches per side and tokens of a tile of `side` pixels, by LLaVA's and LLaVA-NeXT's
    own settings."""
    patches = side // read_positive_int(own, "patch_size")
    return patches, patches**2 + int(own["num_additional_image_tokens"]) - _num_dropped(own)


def _num_dropped(own: Settings) -> int:
    """1 where the vision tower's first token is left out, else 0."""
    return int(own.get("vision_feature_select_strategy") == "default")


def _build_llava(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    size, name = image.get("size") or {}, "size"
    if image.get("do_center_crop"):
        size, name = image.get("crop_size") or {}, "crop_size"
    elif not image.get("do_resize") or ("shortest_edge" in size and not image.get("do_pad")):
        raise SourceError(
            "its images do not all become squares of one size: set do_center_crop and crop_size"
        )
    return FamilyMedia(
        name="llava",
        placeholders={"image": own["image_token"]},
        images=partial(_count_squares, *_of_tile(own, square_side(size, name)), None),
    )


# Gemma3Processor.images_kwargs of transformers 5.23: they override the image processor's settings.
_GEMMA3_PASSES_ON: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def _build_gemma3(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    must_resize(image)
    side = square_side(image.get("size"), "size")
    tokens = read_positive_int(own, "image_seq_length")
    passed_on = own.get("images_kwargs") or _GEMMA3_PASSES_ON
    if passed_on.get("do_pan_and_scan"):
        raise SourceError("its images_kwargs have do_pan_and_scan, which is not counted")
    expansion = Expansion(f"\n\n{_BEGIN}{_SOFT}<end_of_image>\n\n", (tokens,))
    return FamilyMedia(
        name="gemma3",
        placeholders={"image": _BEGIN},
        feature=_SOFT,
        images=partial(_count_squares, patches_per_side(side, tokens), tokens, expansion),
        image_options=dict(passed_on),
    )


def _tile_side(image: Settings) -> int:
    """Pixels per side of a tile; raise a SourceError if tiles of another size are asked for."""
    side = square_side(image.get("size"), "size")
    crop = image.get("crop_size")
    must_resize(image)
    if (crop or image.get("do_center_crop")) and square_side(crop, "crop_size") != side:
        raise SourceError(
            f"its image settings have size {side} but crop_size {crop}: they must be the same"
        )
    return side


def _read_resolutions(image: Settings, side: int) -> tuple[tuple[int, int], ...]:
    given = image.get("image_grid_pinpoints") or []
    pairs = tuple((int(height), int(width)) for height, width in given)
    if not pairs or any(edge % side or edge <= 0 for pair in pairs for edge in pair):
        raise SourceError(
            f"its image settings have image_grid_pinpoints {given}: "
            f"each must be of whole tiles of {side} pixels"
        )
    return pairs


def _build_next(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    side = _tile_side(image)
    tiles = _Tiles(*_of_tile(own, side), side, _read_resolutions(image, side))
    return FamilyMedia(
        name="llava_next",
        placeholders={"image": own["image_token"]},
        images=partial(_count_tiled, tiles),
        model_inputs=("pixel_values", "image_sizes"),
    )


def _build_onevision(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    side = _tile_side(image)
    tokens = read_positive_int(own, "num_image_tokens")
    patches = math.isqrt(tokens)
    ratio, of_video = own["vision_aspect_ratio"], (video.get("num_frames"), video.get("fps"))
    if patches**2 != tokens:
        raise SourceError(f"its processor_config.json has num_image_tokens {tokens}: no square")
    if not ratio.startswith("anyres_max_") or not ratio[len("anyres_max_") :].isdigit():
        raise SourceError(f"its processor_config.json has vision_aspect_ratio {ratio!r}: unknown")
    if square_side(video.get("size"), "video size") != side:
        raise SourceError(f"its video frames must be {side} pixels a side as its image tiles are")
    if video.get("do_sample_frames") and all(of_video):
        raise SourceError("its video settings have fps and num_frames: leave one out")
    most = int(ratio[len("anyres_max_") :])
    tiles = _Tiles(patches, tokens - _num_dropped(own), side, _read_resolutions(image, side), most)
    return FamilyMedia(
        name="llava_onevision",
        placeholders={"image": own["image_token"], "video": own["video_token"]},
        images=partial(_count_tiled, tiles),
        video=partial(_count_video, patches),
        sample=partial(_sample_evenly, *of_video) if video.get("do_sample_frames") else None,
        model_inputs=("pixel_values", "image_sizes", "batch_num_images", "pixel_values_videos"),
        same_num_frames=True,
    )


# Class defaults of transformers 5.23: LlavaNextImageProcessor, LlavaOnevisionImageProcessor,
# LlavaOnevisionVideoProcessor and Gemma3ImageProcessor.
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

_OWN_ONEVISION = {
    **_ALL,
    "num_image_tokens": None,
    "video_token": "<video>",
    "vision_aspect_ratio": "anyres_max_9",
}

# Its image processor may be of any class (CLIP's, SigLIP's): nothing can be assumed.
LLAVA = Family("llava", "LlavaProcessor", {}, {}, _build_llava, _OWN)
LLAVA_NEXT = Family("llava_next", "LlavaNextProcessor", _NEXT_IMAGE, {}, _build_next, _OWN)
LLAVA_ONEVISION = Family(
    "llava_onevision",
    "LlavaOnevisionProcessor",
    _ONEVISION_IMAGE,
    _ONEVISION_VIDEO,
    _build_onevision,
    _OWN_ONEVISION,
)

_GEMMA3_IMAGE = {**SIGLIP_DEFAULTS, "resample": 2, "size": {"height": 224, "width": 224}}
_GEMMA3_OWN = {"image_seq_length": 256, "images_kwargs": None}
GEMMA3 = Family("gemma3", "Gemma3Processor", _GEMMA3_IMAGE, {}, _build_gemma3, _GEMMA3_OWN)
