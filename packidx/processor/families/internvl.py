"""InternVL: an image is cut into square tiles of one size, a video's frame is one tile.

transformers 5.23, `models/internvl` and `models/got_ocr2/image_processing_got_ocr2.py`. Every tile
becomes `image_seq_length` tokens, and an image of several tiles has a thumbnail besides.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    Expansion,
    Family,
    FamilyMedia,
    Frames,
    ImageCounts,
    Settings,
    VideoCount,
    known_fps,
    too_few_frames,
)
from packidx.records.conversation import MediaInfo

FEATURE = "<IMG_CONTEXT>"
TILE = f"<img>{FEATURE}</img>"
SHRINK = 2
"""Patches per side that make one token: every InternVL has `downsample_ratio` 0.5."""


def _count_images(
    image: Settings, tokens: int, heights: Int64s, widths: Int64s, _: Int64s
) -> ImageCounts:
    size, side = image["size"], SHRINK * math.isqrt(tokens)
    limits = int(image["min_patches"]), int(image["max_patches"])
    tiles = count_tiles(heights, widths, int(size["height"]), int(size["width"]), *limits)
    sums = tiles * tokens
    texts = {num: Expansion(TILE, (num,)) for num in np.unique(sums).tolist()}
    return (tiles, side, side), sums, [texts[num] for num in sums.tolist()]


def _count_video(tokens: int, video: MediaInfo, frames: Frames) -> VideoCount:
    num, side = len(frames), SHRINK * math.isqrt(tokens)
    text = "\n".join(f"Frame{number}: {TILE}" for number in range(1, num + 1))
    return (num, side, side), num * tokens, Expansion(text, (tokens,) * num)


def _sample_frames(settings: Settings, total: int, fps: float | None) -> Frames:
    """`InternVLVideoProcessor.sample_frames`: `num_frames` in equal steps, from half a step on.

    As in `torch.arange`, how many there are is a matter of float64, which ones of float32.
    """
    num, shift = settings.get("num_frames"), settings.get("initial_shift", True)
    if num is None:
        num = int(total / known_fps(fps) * float(settings["fps"]))
    if not 0 < num <= total:
        raise too_few_frames(total, max(num, 1))
    step = total / num
    shift = step / 2 if shift is True else float(shift)
    taken = max(math.ceil((total - shift) / step), 0)
    return (shift + step * np.arange(taken)).astype(np.float32).astype(np.int64)


def _build_internvl(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    size, tokens = image["size"], int(own["image_seq_length"])
    resized = image["do_resize"] and video.get("do_resize", True)
    if not resized or not size.get("height") or not size.get("width"):
        raise SourceError(
            "image and video processor must resize (do_resize) to a size with height and width "
            f"(pixels), but do_resize is {resized} and the image processor's size {size}"
        )
    if tokens < 1 or math.isqrt(tokens) ** 2 != tokens:
        raise SourceError(f"image_seq_length must be a square number, but it is {tokens}")
    samples = bool(video.get("do_sample_frames"))
    if samples and video.get("num_frames") is None and video.get("fps") is None:
        raise SourceError(
            "the video processor samples frames (do_sample_frames) but has neither num_frames "
            "nor fps: set one of them"
        )
    return FamilyMedia(
        name="internvl",
        placeholders={"image": FEATURE, "video": "<video>"},
        feature=FEATURE,
        images=partial(_count_images, dict(image), tokens),
        video=partial(_count_video, tokens),
        sample=partial(_sample_frames, dict(video)) if samples else None,
        image_options={"crop_to_patches": True},
        pixels_in_order=True,
        same_num_frames=True,
    )


def count_tiles(
    heights: Int64s, widths: Int64s, height: int, width: int, min_tiles: int, max_tiles: int
) -> Int64s:
    """Tiles per image ``[n]``, the thumbnail included.

    transformers 5.23, `get_optimal_tiled_canvas`, vectorised: of all arrangements of `min_tiles` to
    `max_tiles` tiles the one whose aspect ratio is nearest; of equally near ones a larger one only
    if the image covers more than half of it.

    Args:
        heights, widths: of the images, in pixels ``[n]``.
        height, width: a tile's, in pixels.
    """
    ratio, area = widths / heights, widths * heights
    nearest = np.full(len(heights), np.inf)
    blocks = np.ones(len(heights), np.int64)
    sides = range(1, max_tiles + 1)
    grids = [(c, r) for c in sides for r in sides if min_tiles <= c * r <= max_tiles]
    # Fewest tiles first, then fewest columns.
    for columns, rows in sorted(grids, key=lambda grid: (grid[0] * grid[1], grid[0])):
        away = np.abs(ratio - columns / rows)
        large = area > 0.5 * height * width * columns * rows
        better = (away < nearest) | ((away == nearest) & large)
        blocks[better] = columns * rows
        nearest = np.minimum(nearest, away)
    return np.where(blocks > 1, blocks + 1, 1)


# Class defaults of transformers 5.23: GotOcr2ImageProcessor and InternVLVideoProcessor.
_BOTH: dict[str, Any] = {**CLIP_DEFAULTS, "size": {"height": 384, "width": 384}}
INTERNVL = Family(
    "internvl",
    "InternVLProcessor",
    {**_BOTH, "min_patches": 1, "max_patches": 12},
    {**_BOTH, "initial_shift": True, "do_sample_frames": False},
    _build_internvl,
    {"image_seq_length": 256},
)
