"""Target sizes of images, vectorised: the arithmetic that image processors do one at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_ASPECT_RATIO = 200
"""Above it transformers' smart_resize raises."""


def smart_resize(
    heights: ArrayLike, widths: ArrayLike, factor: int, min_pixels: int, max_pixels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Heights and widths that Qwen's image processors resize to, in pixels.

    transformers 5.23, `models/qwen2_vl/image_processing_qwen2_vl.py`, vectorised: the same float64
    operations in the same order, and Python's `round`, half to even, is `np.rint`. Exact while a
    product of sizes is below 2**53.

    Args:
        heights, widths: pixels ``[n]``.
        factor: both results are its multiples.
        min_pixels, max_pixels: limits of the results' product.

    Returns:
        Two int64 arrays ``[n]``; 0 where a size is not positive or the aspect ratio exceeds 200.
    """
    height = np.atleast_1d(np.asarray(heights, np.int64))
    width = np.atleast_1d(np.asarray(widths, np.int64))
    valid = (height > 0) & (width > 0)
    h, w = np.where(valid, height, 1), np.where(valid, width, 1)
    valid &= np.maximum(h, w) / np.minimum(h, w) <= MAX_ASPECT_RATIO
    h_bar, w_bar = (np.rint(side / factor).astype(np.int64) * factor for side in (h, w))

    pixels = h_bar * w_bar
    shrink, grow = pixels > max_pixels, pixels < min_pixels
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = np.sqrt((h * w) / max_pixels)
        smaller = [_multiple(np.floor(side / beta / factor), factor, shrink) for side in (h, w)]
        beta = np.sqrt(min_pixels / (h * w))
        larger = [_multiple(np.ceil(side * beta / factor), factor, grow) for side in (h, w)]
    h_bar = np.where(shrink, np.maximum(factor, smaller[0]), np.where(grow, larger[0], h_bar))
    w_bar = np.where(shrink, np.maximum(factor, smaller[1]), np.where(grow, larger[1], w_bar))
    return np.where(valid, h_bar, 0), np.where(valid, w_bar, 0)


def _multiple(
    quotients: NDArray[np.float64], factor: int, chosen: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """`quotients` times `factor` where `chosen`; elsewhere they may be infinite: 0."""
    whole: NDArray[np.int64] = np.where(chosen, quotients, 0).astype(np.int64)
    return whole * factor
