"""Gemma 3: every image becomes one square and the same number of tokens, and so does each crop.

With pan and scan, images far from square are cropped, too. transformers takes that from the
processor's `images_kwargs`, never from its image settings: a folder cannot switch it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    MediaCounts,
    Settings,
    VisionFamily,
)
from packidx.processor.families.shared import (
    must_resize,
    needed,
    patches_per_side,
    positive_sizes,
    square_side,
    without,
)

BEGIN, FEATURE, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """Which images are cropped, and into how many crops."""

    min_crop_size: int
    """Pixels."""
    max_num_crops: int
    min_ratio: float
    """Longer side : shorter side from which on an image is cropped."""

    def num_crops(self, heights: Int64s, widths: Int64s) -> Int64s:
        """``[n]`` crops of each image; 0 where it is left whole.

        transformers 5.23, `Gemma3ImageProcessor.pan_and_scan_batched`, for n images at once.
        """
        longer, shorter = np.maximum(heights, widths), np.minimum(heights, widths)
        ratio = longer / shorter
        crops = np.floor(ratio + 0.5).astype(np.int64)
        crops = np.minimum(np.floor(longer / self.min_crop_size).astype(np.int64), crops)
        crops = np.minimum(self.max_num_crops, np.maximum(2, crops))
        smallest = np.minimum(np.ceil(longer / crops).astype(np.int64), shorter)
        cropped = (ratio >= self.min_ratio) & (smallest >= self.min_crop_size)
        return np.where(cropped, crops, 0)


@dataclass(frozen=True, slots=True)
class Gemma3Vision(VisionFamily):
    """A Gemma 3 processor."""

    placeholders: ClassVar[Mapping[str, str]] = {"image": BEGIN}
    feature_tokens: ClassVar[Mapping[str, str]] = {"image": FEATURE}

    patches: int
    """Patches per side of an image or a crop."""
    tokens: int
    """Of an image or a crop."""
    pan_and_scan: PanAndScan | None
    image_options: Mapping[str, Any]

    def count_images(self, sizes: ArrayLike, samples: Int64s | None = None) -> MediaCounts:
        heights, widths, errors = positive_sizes(sizes)
        crops = np.zeros(len(heights), np.int64)
        if self.pan_and_scan is not None:
            crops = self.pan_and_scan.num_crops(heights, widths)
        side = np.full_like(crops, self.patches)
        grids = np.stack([crops + 1, side, side], axis=1)
        by_crops = {num: self._expansion(num) for num in np.unique(crops).tolist()}
        return MediaCounts(
            without(grids, errors),
            without((crops + 1) * self.tokens, errors),
            [by_crops[num] for num in crops.tolist()],
            errors,
        )

    def _expansion(self, num_crops: int) -> Expansion:
        image = f"\n\n{BEGIN}{FEATURE}{END}\n\n"
        text = image
        if num_crops:
            crops = " ".join([image] * num_crops)
            text = f"Here is the original image {image} and here are some crops"
            text += f" to help you see better {crops}"
        return Expansion(text, (self.tokens,) * (num_crops + 1))


# Gemma3Processor.images_kwargs of transformers 5.23: they override the image processor's settings.
_PASSED_ON: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def _build(image: Settings, video: Settings, own: Settings) -> Gemma3Vision:
    must_resize(image)
    side = square_side(image.get("size"), "size")
    tokens = needed(own, "image_seq_length")
    passed_on = own.get("images_kwargs") or _PASSED_ON
    scan = None
    if passed_on.get("do_pan_and_scan"):
        try:
            scan = PanAndScan(
                int(passed_on["pan_and_scan_min_crop_size"]),
                int(passed_on["pan_and_scan_max_num_crops"]),
                float(passed_on["pan_and_scan_min_ratio_to_activate"]),
            )
        except KeyError as error:
            raise SourceError(f"its images_kwargs have do_pan_and_scan but no {error}") from error
    return Gemma3Vision(patches_per_side(side, tokens), tokens, scan, dict(passed_on))


# Class defaults of transformers 5.23: Gemma3ImageProcessor.
_IMAGE: dict[str, Any] = {
    **SIGLIP_DEFAULTS,
    "resample": 2,
    "size": {"height": 224, "width": 224},
}

GEMMA3 = Family(
    "gemma3",
    "Gemma3Processor",
    _IMAGE,
    {},
    _build,
    own_defaults={"image_seq_length": 256, "images_kwargs": None},
)
