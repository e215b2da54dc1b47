"""Numbers of tokens of images and videos, family by family; `base` says what a family is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.processor.families.base import Expansion, Family, MediaCounts, MediaModel
from packidx.processor.families.idefics3 import IDEFICS3, SMOLVLM
from packidx.processor.families.internvl import INTERNVL
from packidx.processor.families.llava import GEMMA3, LLAVA, LLAVA_NEXT, LLAVA_ONEVISION
from packidx.processor.families.pixtral import PIXTRAL
from packidx.processor.families.qwen import GLM4V, GLM46V, QWEN2_5_VL, QWEN2_VL, QWEN3_VL

__all__ = ["FAMILIES", "Expansion", "Family", "MediaCounts", "MediaModel", "find_family"]

FAMILIES = {
    family.processor_class: family
    for family in (
        *(QWEN2_VL, QWEN2_5_VL, QWEN3_VL),
        *(INTERNVL, GLM4V, GLM46V),
        *(LLAVA, LLAVA_NEXT, LLAVA_ONEVISION, GEMMA3, PIXTRAL, IDEFICS3, SMOLVLM),
    )
}
"""By the processor's class."""


def find_family(processor_class: str | None, image_settings: Mapping[str, Any]) -> Family | None:
    """The family of a processor, or None if it is not one we know.

    Checkpoints may leave `processor_class` out; then the image processor's class and its patch size
    tell them apart (Qwen2-VL and Qwen2.5-VL count images alike).
    """
    if processor_class is not None:
        return FAMILIES.get(processor_class)
    kind = str(image_settings.get("image_processor_type") or "")
    if kind.removesuffix("Fast").removesuffix("Pil") != "Qwen2VLImageProcessor":
        return None
    patch_size = image_settings.get("patch_size", 14)
    return QWEN3_VL if patch_size == 16 else QWEN2_5_VL
