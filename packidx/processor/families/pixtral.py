"""Pixtral and Mistral 3: images keep their shape, and each row of patches ends with a token."""

from __future__ import annotations

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
    ImageCounts,
    Settings,
    must_resize,
    read_positive_int,
)


def _count_images(
    limits: tuple[int, int], own: Settings, heights: Int64s, widths: Int64s, _: Int64s
) -> ImageCounts:
    """Return what images become that may have `limits` of height and width in pixels (transformers
    5.23, `pixtral/image_processing_pixtral.py::get_resize_output_image_size`)."""
    merge = own["spatial_merge_size"]
    ratio = np.maximum(heights / limits[0], widths / limits[1])
    shrunk = ratio > 1
    ratio = np.where(shrunk, ratio, 1.0)
    rows, columns = (
        (np.where(shrunk, np.floor(side / ratio).astype(np.int64), side) - 1)
        // (own["patch_size"] * merge)
        + 1
        for side in (heights, widths)
    )
    image, line_end, end = (own[f"image_{name}token"] for name in ("", "break_", "end_"))
    expansions = [
        Expansion((image + line_end) * (r - 1) + image + end, (c,) * r) if r and c else None
        for r, c in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    return (1, rows * merge, columns * merge), rows * columns, expansions


def _build_pixtral(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    size = image.get("size") or {}
    must_resize(image)
    if image.get("do_center_crop"):
        raise SourceError("its image settings have do_center_crop true: set it to false")
    height = size.get("longest_edge") or size.get("height")
    width = size.get("longest_edge") or size.get("width")
    if not height or not width:
        raise SourceError(f"its image settings have size {size}: it needs longest_edge")
    edge = read_positive_int(own, "patch_size") * read_positive_int(own, "spatial_merge_size")
    return FamilyMedia(
        name="pixtral",
        placeholders={"image": own["image_token"]},
        images=partial(_count_images, (int(height), int(width)), dict(own)),
        model_inputs=("pixel_values", "image_sizes"),
        image_options={"patch_size": edge},  # which the processor passes on
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

PIXTRAL = Family("pixtral", "PixtralProcessor", _IMAGE, {}, _build_pixtral, _OWN)
