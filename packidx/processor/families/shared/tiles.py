"""What families that cut images into square tiles have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import BadRecord, SourceError
from packidx.processor.families.base import Settings, no_pixels

PATCH_SIZES = (14, 16)
"""Pixels per side of a patch in the vision towers that `patches_per_side` knows (SigLIP's)."""


def positive_sizes(sizes: ArrayLike) -> tuple[Int64s, Int64s, dict[int, BadRecord]]:
    """Heights and widths ``[n]`` of ``[n, 2]`` sizes, 1 where impossible, and why those are."""
    array = np.asarray(sizes, np.int64).reshape(-1, 2)
    bad = np.flatnonzero((array <= 0).any(axis=1)).tolist()
    errors = {number: no_pixels(*array[number]) for number in bad}
    array = np.where((array <= 0).any(axis=1, keepdims=True), 1, array)
    return array[:, 0], array[:, 1], errors


def without(values: Int64s, errors: Mapping[int, BadRecord]) -> Int64s:
    """`values` ``[n, …]`` with 0 in the places of `errors`."""
    if errors:
        values[list(errors)] = 0
    return values


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
