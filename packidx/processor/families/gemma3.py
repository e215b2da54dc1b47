"""Gemma 3: every image becomes one square and the same number of tokens.

Pan and scan, which crops images far from square, is taken from the processor's `images_kwargs`
alone: no folder can switch it on, and a processor object that has it is counted by probing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from packidx.arrays import Int64s
from packidx.errors import SourceError
from packidx.processor.families.base import (
    SIGLIP_DEFAULTS,
    Expansion,
    Family,
    ImageCounts,
    Settings,
    VisionFamily,
)
from packidx.processor.families.shared import (
    must_resize,
    needed,
    patches_per_side,
    square_side,
)

BEGIN, FEATURE, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


@dataclass(frozen=True, slots=True)
class Gemma3Vision(VisionFamily):
    """A Gemma 3 processor."""

    placeholders: ClassVar[Mapping[str, str]] = {"image": BEGIN}
    feature_tokens: ClassVar[Mapping[str, str]] = {"image": FEATURE}

    patches: int
    """Patches per side of an image."""
    tokens: int
    """Of an image."""
    image_options: Mapping[str, Any]

    def _count_images(self, heights: Int64s, widths: Int64s, samples: Int64s) -> ImageCounts:
        expansion = Expansion(f"\n\n{BEGIN}{FEATURE}{END}\n\n", (self.tokens,))
        return (1, self.patches, self.patches), self.tokens, [expansion] * len(heights)


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
    if passed_on.get("do_pan_and_scan"):
        raise SourceError("its images_kwargs have do_pan_and_scan, which is not counted")
    return Gemma3Vision(patches_per_side(side, tokens), tokens, dict(passed_on))


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
