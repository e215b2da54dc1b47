"""Pixtral and Mistral 3: images keep their shape, and each row of patches ends with a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    CLIP_DEFAULTS,
    Expansion,
    Family,
    ImageCounts,
    Settings,
    VisionFamily,
)
from packidx.processor.families.shared import must_resize, needed


@dataclass(frozen=True, slots=True)
class PixtralVision(VisionFamily):
    """A Pixtral processor, which Mistral 3 uses, too (it merges patches)."""

    model_inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")

    patch_size: int
    merge_size: int
    """Patches per side that make one token."""
    max_height: int
    """Pixels."""
    max_width: int
    """Pixels."""
    image_token: str
    break_token: str
    """Ends a row of tokens."""
    end_token: str
    """Ends the last row."""

    @property
    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.image_token}

    @property
    def image_options(self) -> Mapping[str, Any]:
        """What the processor passes on to its image processor."""
        return {"patch_size": self.patch_size * self.merge_size}

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        rows, columns = self._shapes(heights, widths)
        shapes = zip(rows.tolist(), columns.tolist(), strict=True)
        names = self.image_token, self.break_token, self.end_token
        expansions = [_rows(*shape, *names) for shape in shapes]
        return (1, rows * self.merge_size, columns * self.merge_size), rows * columns, expansions

    def _shapes(self, heights: Int64s, widths: Int64s) -> tuple[Int64s, Int64s]:
        """Rows and columns of tokens of n images.

        transformers 5.23, `pixtral/image_processing_pixtral.py::get_resize_output_image_size`.
        """
        ratio = np.maximum(heights / self.max_height, widths / self.max_width)
        shrunk = ratio > 1
        ratio = np.where(shrunk, ratio, 1.0)
        factor = self.patch_size * self.merge_size
        rows, columns = (
            (np.where(shrunk, np.floor(side / ratio).astype(np.int64), side) - 1) // factor + 1
            for side in (heights, widths)
        )
        return rows, columns


@lru_cache(maxsize=1 << 14)
def _rows(rows: int, columns: int, image: str, line_break: str, end: str) -> Expansion | None:
    if rows == 0 or columns == 0:
        return None
    return Expansion((image + line_break) * (rows - 1) + image + end, (columns,) * rows)


def _build(image: Settings, video: Settings, own: Settings) -> PixtralVision:
    size = image.get("size") or {}
    must_resize(image)
    if image.get("do_center_crop"):
        raise SourceError("its image settings have do_center_crop true: set it to false")
    height = size.get("longest_edge") or size.get("height")
    width = size.get("longest_edge") or size.get("width")
    if not height or not width:
        raise SourceError(f"its image settings have size {size}: it needs longest_edge")
    return PixtralVision(
        patch_size=needed(own, "patch_size"),
        merge_size=needed(own, "spatial_merge_size"),
        max_height=int(height),
        max_width=int(width),
        image_token=str(own.get("image_token") or "[IMG]"),
        break_token=str(own.get("image_break_token") or "[IMG_BREAK]"),
        end_token=str(own.get("image_end_token") or "[IMG_END]"),
    )


# Class defaults of transformers 5.23: PixtralImageProcessor and PixtralProcessor.
_IMAGE: dict[str, Any] = {
    **CLIP_DEFAULTS,
    "do_pad": True,
    "patch_size": {"height": 16, "width": 16},
    "size": {"longest_edge": 1024},
}
_OWN = {
    "patch_size": 16,
    "spatial_merge_size": 1,
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}

PIXTRAL = Family("pixtral", "PixtralProcessor", _IMAGE, {}, _build, own_defaults=_OWN)
