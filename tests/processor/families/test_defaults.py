"""What a checkpoint leaves out is what transformers' classes have."""

from __future__ import annotations

import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers

from packidx.processor.families import FAMILIES
from packidx.processor.fingerprint import complete_settings

CLASSES = {
    "Qwen2VLProcessor": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"),
    "Qwen2_5_VLProcessor": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3VLProcessor": ("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor"),
    "InternVLProcessor": ("GotOcr2ImageProcessor", "InternVLVideoProcessor"),
    "Glm4vProcessor": ("Glm4vImageProcessor", "Glm4vVideoProcessor"),
    "Glm46VProcessor": ("Glm46VImageProcessor", "Glm46VVideoProcessor"),
    "LlavaNextProcessor": ("LlavaNextImageProcessor", None),
    "LlavaOnevisionProcessor": ("LlavaOnevisionImageProcessor", "LlavaOnevisionVideoProcessor"),
    "Gemma3Processor": ("Gemma3ImageProcessor", None),
    "PixtralProcessor": ("PixtralImageProcessor", None),
    "Idefics3Processor": ("Idefics3ImageProcessor", None),
    "SmolVLMProcessor": ("SmolVLMImageProcessor", "SmolVLMVideoProcessor"),
}
"""By the processor's class, its image and its video processor's; LLaVA's may be any."""


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_the_classes(name: str) -> None:
    family = FAMILIES[name]
    assert family.processor_class == name
    parts = family.image_defaults, family.video_defaults
    for defaults, kind in zip(parts, CLASSES.get(name, (None, None)), strict=True):
        assert bool(defaults) == (kind is not None)
        if kind is not None:
            real = getattr(transformers, kind)().to_dict()
            names = tuple(defaults)
            assert complete_settings(real, None, names) == complete_settings(defaults, None, names)
