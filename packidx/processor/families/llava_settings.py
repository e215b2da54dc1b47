"""LLaVA, LLaVA-NeXT and LLaVA-OneVision from their processors' settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from packidx.errors import SourceError
from packidx.processor.families.base import CLIP_DEFAULTS, Family
from packidx.processor.families.llava import LlavaVision, TiledLlavaVision
from packidx.processor.families.shared.resize import must_resize
from packidx.processor.families.shared.tiles import needed, square_side


def _of_tile(own: Mapping[str, Any], side: int) -> dict[str, Any]:
    """What LLaVA's and LLaVA-NeXT's own settings say of a tile of `side` pixels."""
    patches = side // needed(own, "patch_size")
    tokens = patches**2 + int(own.get("num_additional_image_tokens") or 0)
    return {"patches": patches, "base_tokens": tokens, **_of_image(own)}


def _of_image(own: Mapping[str, Any]) -> dict[str, Any]:
    """What the own settings of all three say of any image."""
    return {
        "dropped": int(own.get("vision_feature_select_strategy") == "default"),
        "image_token": str(own.get("image_token") or "<image>"),
    }


def _build_llava(
    image: Mapping[str, Any], video: Mapping[str, Any], own: Mapping[str, Any]
) -> LlavaVision:
    size, name = image.get("size") or {}, "size"
    if image.get("do_center_crop"):
        size, name = image.get("crop_size") or {}, "crop_size"
    elif not image.get("do_resize") or ("shortest_edge" in size and not image.get("do_pad")):
        raise SourceError(
            "its images do not all become squares of one size: set do_center_crop and crop_size"
        )
    return LlavaVision("llava", **_of_tile(own, square_side(size, name)))


def _tile_side(image: Mapping[str, Any]) -> int:
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


def _resolutions(image: Mapping[str, Any], side: int) -> tuple[tuple[int, int], ...]:
    given = image.get("image_grid_pinpoints") or []
    pairs = tuple((int(height), int(width)) for height, width in given)
    if not pairs or any(edge % side or edge <= 0 for pair in pairs for edge in pair):
        raise SourceError(
            f"its image settings have image_grid_pinpoints {given}: "
            f"each must be of whole tiles of {side} pixels"
        )
    return pairs


def _build_next(
    image: Mapping[str, Any], video: Mapping[str, Any], own: Mapping[str, Any]
) -> TiledLlavaVision:
    side = _tile_side(image)
    return TiledLlavaVision(
        "llava_next",
        **_of_tile(own, side),
        model_inputs=("pixel_values", "image_sizes"),
        side=side,
        resolutions=_resolutions(image, side),
    )


def _build_onevision(
    image: Mapping[str, Any], video: Mapping[str, Any], own: Mapping[str, Any]
) -> TiledLlavaVision:
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
_STRATEGY = ("image_token", "vision_feature_select_strategy")

LLAVA = Family(
    "llava",
    "LlavaProcessor",
    {},  # its image processor may be of any class (CLIP's, SigLIP's): nothing can be assumed
    {},
    _build_llava,
    settings=(*_STRATEGY, "patch_size", "num_additional_image_tokens"),
    own_defaults={"image_token": "<image>", "num_additional_image_tokens": 0},
)
LLAVA_NEXT = Family(
    "llava_next",
    "LlavaNextProcessor",
    _NEXT_IMAGE,
    {},
    _build_next,
    settings=(
        *(*_STRATEGY, "patch_size", "num_additional_image_tokens"),
        "image_grid_pinpoints",
    ),
    own_defaults={"image_token": "<image>", "num_additional_image_tokens": 0},
)
LLAVA_ONEVISION = Family(
    "llava_onevision",
    "LlavaOnevisionProcessor",
    _ONEVISION_IMAGE,
    _ONEVISION_VIDEO,
    _build_onevision,
    settings=(
        *(*_STRATEGY, "num_image_tokens", "video_token"),
        *("vision_aspect_ratio", "image_grid_pinpoints"),
    ),
    own_defaults={
        "image_token": "<image>",
        "video_token": "<video>",
        "vision_aspect_ratio": "anyres_max_9",
    },
)
