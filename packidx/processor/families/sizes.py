"""Target sizes of images, vectorised: the arithmetic that image processors do one at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import Settings

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""


def smart_resize(
    heights: ArrayLike,
    widths: ArrayLike,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    *,
    frames: ArrayLike | None = None,
    temporal_factor: int = 1,
) -> tuple[Int64s, Int64s]:
    """Heights and widths that Qwen's and GLM's processors resize images or videos to, in pixels.

    transformers 5.23, `smart_resize` of `models/qwen2_vl/image_processing_qwen2_vl.py` and, with
    `frames`, of `models/qwen3_vl/video_processing_qwen3_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of height * width, of all frames together.
        frames: of each video, ``[n]``; None for images. Frames with a side below `factor` are
            enlarged first.
        temporal_factor: frames are counted in its multiples.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive, the aspect ratio exceeds 200, or
        there are fewer than `temporal_factor` frames.
    """
    sides = [np.atleast_1d(np.asarray(side, np.int64)) for side in (heights, widths)]
    number = np.broadcast_to(np.asarray(1 if frames is None else frames, np.int64), sides[0].shape)
    valid = (sides[0] > 0) & (sides[1] > 0) & (number >= temporal_factor)
    f = np.where(valid, number, temporal_factor)
    h, w = (np.where(valid, side, factor) for side in sides)
    if frames is not None:
        scale = np.maximum(factor / h, factor / w)
        small = (h < factor) | (w < factor)
        h, w = (np.where(small, (side * scale).astype(np.int64), side) for side in (h, w))
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))
    pixels = np.rint(f / temporal_factor).astype(np.int64) * temporal_factor * h_bar * w_bar
    shrink, grow = pixels > max_pixels, (pixels < min_pixels) & (pixels <= max_pixels)
    beta = np.sqrt(f[shrink] * h[shrink] * w[shrink] / max_pixels)
    for bar, side in ((h_bar, h), (w_bar, w)):
        floors = np.floor(side[shrink] / beta / factor).astype(np.int64)
        bar[shrink] = np.maximum(factor, floors * factor)
    beta = np.sqrt(min_pixels / (f[grow] * h[grow] * w[grow]))
    for bar, side in ((h_bar, h), (w_bar, w)):
        bar[grow] = np.ceil(side[grow] * beta / factor).astype(np.int64) * factor
    return h_bar * valid, w_bar * valid


def must_resize(settings: Settings, kind: str = "image") -> None:
    """
    Raises:
        SourceError: resizing is switched off.
    """
    if not settings.get("do_resize"):
        raise SourceError(f"its {kind} settings have do_resize false: set it to true")


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Sizes of patches, and how many pixels an image, a frame or a video may have."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def of(cls, settings: Settings, kind: str) -> PixelLimits:
        """Return those of complete settings.

        Raises:
            SourceError: resizing is switched off, or the limits are missing.
        """
        must_resize(settings, kind)
        size = settings["size"]
        if not size.get("shortest_edge") or not size.get("longest_edge"):
            raise SourceError(
                f"the {kind} processor's size needs shortest_edge and longest_edge (pixels), "
                f"but it is {size}"
            )
        patches = (settings[n] for n in ("patch_size", "temporal_patch_size", "merge_size"))
        return cls(*map(int, (*patches, size["shortest_edge"], size["longest_edge"])))

    @property
    def factor(self) -> int:
        """Pixels per side that make one token."""
        return self.patch_size * self.merge_size

    def counts(self, height: Any, width: Any) -> tuple[tuple[int, Any, Any], Any]:
        """Return the grid (t, h, w) of an image or step of these sides in pixels, and its tokens;
        numbers, or arrays of several."""
        grid = 1, height // self.patch_size, width // self.patch_size
        return grid, (height // self.factor) * (width // self.factor)

    def resized(
        self,
        heights: ArrayLike,
        widths: ArrayLike,
        frames: int | None = None,
        max_pixels: int | None = None,
    ) -> tuple[Int64s, Int64s]:
        """`smart_resize` by these limits, or with another `max_pixels`."""
        return smart_resize(
            heights,
            widths,
            self.factor,
            self.min_pixels,
            self.max_pixels if max_pixels is None else max_pixels,
            frames=frames,
            temporal_factor=1 if frames is None else self.temporal_patch_size,
        )


PATCH_SIZES = (14, 16)
"""Pixels per side of a patch in the vision towers that `patches_per_side` knows (SigLIP's)."""


def square_side(size: Mapping[str, Any] | None, name: str) -> int:
    """The side in pixels of a size that is a square, however it is spelled.

    Raises:
        SourceError: it is none.
    """
    size = size or {}
    sides = {int(size[key]) for key in ("height", "width", "shortest_edge") if size.get(key)}
    if len(sides) != 1 or (("height" in size) != ("width" in size)):
        raise SourceError(f"its image settings have {name} {dict(size)}: it must be a square")
    return sides.pop()


def longest_edge(size: Mapping[str, Any] | None, name: str) -> int:
    """The longest edge in pixels that a size allows.

    Raises:
        SourceError: the size is not given as one.
    """
    edge = (size or {}).get("longest_edge")
    if not edge or len(size or {}) != 1:
        raise SourceError(f"its image settings have {name} {size}: it must have longest_edge alone")
    return int(edge)


def needed(settings: Settings, name: str) -> int:
    """A whole number among the settings.

    Raises:
        SourceError: it is not there.
    """
    value = settings.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SourceError(
            f"its processor_config.json has {name} {value}: set it to the number that the model has"
        )
    return value


def patches_per_side(side: int, tokens: int) -> int:
    """Patches per side of a square image of `side` pixels that becomes `tokens` tokens.

    Processors that know tokens only leave the size of a patch to the model; it is the one of
    `PATCH_SIZES` of which whole squares of patches make a token: 16 for (512, 64), 14 for
    (896, 256).

    Raises:
        SourceError: not exactly one of them fits.
    """
    fits = []
    for patch in PATCH_SIZES:
        row = math.isqrt(tokens)
        if row * row == tokens and side // patch >= row and side // patch % row == 0:
            fits.append(side // patch)
    if len(set(fits)) != 1:
        raise SourceError(
            f"its images of {side} x {side} pixels become {tokens} tokens, which tells nothing of "
            f"how many patches they have: known are patches of {PATCH_SIZES} pixels a side"
        )
    return fits[0]


def best_resolution(
    heights: Int64s, widths: Int64s, resolutions: Sequence[Sequence[int]]
) -> tuple[Int64s, Int64s]:
    """Heights and widths ``[n]`` of the resolutions that keep most of each image.

    transformers 5.23, `image_processing_utils.select_best_resolution`, for n images at once.
    """
    most = np.zeros(len(heights), np.int64)
    least_waste = np.full(len(heights), np.iinfo(np.int64).max)
    best = np.zeros((2, len(heights)), np.int64)
    pixels = heights * widths
    for height, width in resolutions:
        scale = np.minimum(width / widths, height / heights)
        scaled = (widths * scale).astype(np.int64) * (heights * scale).astype(np.int64)
        kept = np.minimum(scaled, pixels)
        waste = width * height - kept
        better = (kept > most) | ((kept == most) & (waste < least_waste))
        most, least_waste = np.where(better, kept, most), np.where(better, waste, least_waste)
        best = np.where(better, np.array([[height], [width]]), best)
    return best[0], best[1]
