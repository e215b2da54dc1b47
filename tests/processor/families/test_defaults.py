"""What a folder leaves out is what transformers' classes have: their defaults, family by family."""

from __future__ import annotations

import pytest
import torchvision_cpu  # noqa: F401, it must come before transformers
import transformers

from packidx.processor.families import FAMILIES
from packidx.processor.fingerprint import complete_settings

CLASSES = {
    "Qwen2VLProcessor": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"),
    "Qwen2_5_VLProcessor": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3VLProcessor": ("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor"),
    "Glm4vProcessor": ("Glm4vImageProcessor", "Glm4vVideoProcessor"),
    "Glm46VProcessor": ("Glm46VImageProcessor", "Glm46VVideoProcessor"),
    "InternVLProcessor": ("GotOcr2ImageProcessor", "InternVLVideoProcessor"),
    "LlavaNextProcessor": ("LlavaNextImageProcessor", None),
    "LlavaOnevisionProcessor": ("LlavaOnevisionImageProcessor", "LlavaOnevisionVideoProcessor"),
    "Gemma3Processor": ("Gemma3ImageProcessor", None),
    "PixtralProcessor": ("PixtralImageProcessor", None),
    "Idefics3Processor": ("Idefics3ImageProcessor", None),
    "SmolVLMProcessor": ("SmolVLMImageProcessor", "SmolVLMVideoProcessor"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_the_classes(name: str) -> None:
    family = FAMILIES[name]
    both = family.image_defaults, family.video_defaults
    for defaults, known in zip(both, CLASSES[name], strict=True):
        if known is not None:
            real = getattr(transformers, known)().to_dict()
            assert complete_settings({}, defaults, tuple(defaults)) == complete_settings(
                real, None, tuple(defaults)
            )
