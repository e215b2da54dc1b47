"""Target sizes of images, vectorised: the arithmetic that image processors do one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import Settings

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""
_BLOCK = 8192
"""Sizes handled at a time, so that the steps' arrays stay in the processor's cache."""


def smart_resize(
    heights: ArrayLike,
    widths: ArrayLike,
    factor: int,
    min_pixels: int,
    max_pixels: int | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths that Qwen's image processors resize to, in pixels.

    transformers 5.23, `models/qwen2_vl/image_processing_qwen2_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of the results' product; the latter also ``[n]``.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive or the aspect ratio exceeds 200.
    """
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    limits = np.broadcast_to(np.asarray(max_pixels, np.int64), height.shape)
    resized = np.empty((2, len(height)), np.int64)
    for at in range(0, len(height), _BLOCK):
        block = slice(at, at + _BLOCK)
        resized[:, block] = _resize(height[block], width[block], factor, min_pixels, limits[block])
    return resized[0], resized[1]


def _resize(
    height: Int64s, width: Int64s, factor: int, min_pixels: int, max_pixels: Int64s
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`smart_resize` of one block; its whole numbers are exact in float64."""
    valid = (height > 0) & (width > 0)
    h, w = (np.where(valid, side, 1).astype(np.float64) for side in (height, width))
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor) * factor for side in (h, w))
    pixels = h_bar * w_bar
    if len(shrink := np.flatnonzero(pixels > max_pixels)):
        high, wide = h[shrink], w[shrink]
        beta = np.sqrt(high * wide / max_pixels[shrink])
        h_bar[shrink] = np.maximum(factor, np.floor(high / beta / factor) * factor)
        w_bar[shrink] = np.maximum(factor, np.floor(wide / beta / factor) * factor)
    grow = np.flatnonzero((pixels < min_pixels) & (pixels <= max_pixels))
    if len(grow):
        high, wide = h[grow], w[grow]
        beta = np.sqrt(min_pixels / (high * wide))
        h_bar[grow] = np.ceil(high * beta / factor) * factor
        w_bar[grow] = np.ceil(wide * beta / factor) * factor
    return h_bar * valid, w_bar * valid


def smart_resize_video(
    frames: ArrayLike,
    heights: ArrayLike,
    widths: ArrayLike,
    *,
    temporal_factor: int,
    factor: int,
    min_pixels: int,
    max_pixels: int | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths of frames where a whole video's pixels are limited, not each frame's.

    transformers 5.23, `smart_resize` of `models/qwen3_vl/video_processing_qwen3_vl.py`, vectorised
    like `smart_resize`. Sides below `factor` are enlarged before the aspect ratio is looked at.

    Args:
        frames, heights, widths: of each video, ``[n]``; heights and widths in pixels.
        temporal_factor: frames are counted in its multiples.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of frames * height * width; the latter also ``[n]``.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive, the aspect ratio exceeds 200, or
        there are fewer than `temporal_factor` frames.
    """
    number = np.atleast_1d(np.asarray(frames, np.int64))
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    valid = (height > 0) & (width > 0) & (number >= temporal_factor)
    h, w = np.where(valid, height, factor), np.where(valid, width, factor)
    f = np.where(valid, number, temporal_factor)
    scale = np.maximum(factor / h, factor / w)
    h, w = (
        np.where((h < factor) | (w < factor), (side * scale).astype(np.int64), side)
        for side in (h, w)
    )
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))
    f_bar = np.rint(f / temporal_factor).astype(np.int64) * temporal_factor

    pixels = f_bar * h_bar * w_bar
    shrink, grow = pixels > max_pixels, pixels < min_pixels
    beta = np.sqrt((f * h * w) / max_pixels)
    smaller = [_multiple(np.floor(side / beta / factor), factor, shrink) for side in (h, w)]
    beta = np.sqrt(min_pixels / (f * h * w))
    larger = [_multiple(np.ceil(side * beta / factor), factor, grow) for side in (h, w)]
    h_bar = np.where(shrink, np.maximum(factor, smaller[0]), np.where(grow, larger[0], h_bar))
    w_bar = np.where(shrink, np.maximum(factor, smaller[1]), np.where(grow, larger[1], w_bar))
    return np.where(valid, h_bar, 0), np.where(valid, w_bar, 0)


def _multiple(
    quotients: NDArray[np.float64], factor: int, chosen: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """`quotients` times `factor` where `chosen`; elsewhere they may be infinite: 0."""
    rounded: NDArray[np.int64] = np.where(chosen, quotients, 0).astype(np.int64)
    return rounded * factor


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

    @property
    def factor(self) -> int:
        """Pixels per side that make one token."""
        return self.patch_size * self.merge_size

    def grid(self, frames: int, heights: ArrayLike, widths: ArrayLike) -> tuple[Int64s, Int64s]:
        """Patches per column and per row of `resized` media, which may have no video's frames."""
        height, width = self.resized(frames, heights, widths)
        return height // self.patch_size, width // self.patch_size

    def resized(
        self,
        frames: ArrayLike,
        heights: ArrayLike,
        widths: ArrayLike,
        max_pixels: int | NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`smart_resize_video` by these limits, or with another `max_pixels`."""
        return smart_resize_video(
            frames,
            heights,
            widths,
            temporal_factor=self.temporal_patch_size,
            factor=self.factor,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels if max_pixels is None else max_pixels,
        )


def pixel_limits(settings: Settings, kind: str) -> dict[str, Any]:
    """The fields of `PixelLimits` out of complete settings.

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
    names = ("patch_size", "temporal_patch_size", "merge_size")
    pixels = {"min_pixels": int(size["shortest_edge"]), "max_pixels": int(size["longest_edge"])}
    return {name: int(settings[name]) for name in names} | pixels
