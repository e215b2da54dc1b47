"""Gemma 3: every image becomes one square and the same number of tokens.

Pan and scan, which crops images far from square, is taken from the processor's `images_kwargs`
alone: no folder can switch it on, and a processor object that has it is counted by probing it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    FamilyMedia,
    ImageCounts,
    Settings,
)
from packidx.processor.families.sizes import must_resize, needed, patches_per_side, square_side

BEGIN, FEATURE, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


def _images(patches: int, tokens: int, heights: Int64s, widths: Int64s, _: Int64s) -> ImageCounts:
    expansion = Expansion(f"\n\n{BEGIN}{FEATURE}{END}\n\n", (tokens,))
    return (1, patches, patches), tokens, [expansion] * len(heights)


# Gemma3Processor.images_kwargs of transformers 5.23: they override the image processor's settings.
_PASSED_ON: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def _build(image: Settings, video: Settings, own: Settings) -> FamilyMedia:
    must_resize(image)
    side = square_side(image.get("size"), "size")
    tokens = needed(own, "image_seq_length")
    passed_on = own.get("images_kwargs") or _PASSED_ON
    if passed_on.get("do_pan_and_scan"):
        raise SourceError("its images_kwargs have do_pan_and_scan, which is not counted")
    return FamilyMedia(
        name="gemma3",
        placeholders={"image": BEGIN},
        feature=FEATURE,
        images=partial(_images, patches_per_side(side, tokens), tokens),
        image_options=dict(passed_on),
    )


# Class defaults of transformers 5.23: Gemma3ImageProcessor.
_IMAGE = {**SIGLIP_DEFAULTS, "resample": 2, "size": {"height": 224, "width": 224}}
_OWN = {"image_seq_length": 256, "images_kwargs": None}

GEMMA3 = Family("gemma3", "Gemma3Processor", _IMAGE, {}, _build, _OWN)
