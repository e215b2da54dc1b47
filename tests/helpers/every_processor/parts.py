"""The parts of a processor class, found by its attributes and by what its source names."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

MAPPINGS: dict[str, Mapping[str, Any]] = {
    "image_processor": IMAGE_PROCESSOR_MAPPING_NAMES,
    "video_processor": VIDEO_PROCESSOR_MAPPING_NAMES,
    "feature_extractor": FEATURE_EXTRACTOR_MAPPING_NAMES,
    "audio_processor": FEATURE_EXTRACTOR_MAPPING_NAMES,
}
"""Attribute of a processor → model type → the class that is found there."""
TOKEN = re.compile(r"""["'](<[\w|/:-]{1,40}>|\[[A-Z_]+\])["']""")
"""A string in a processor's source that is a special token."""
NOT_NAMES = ("pad", "eos", "unk", "bos", "add_bos", "add_eos")
"""Of the tokens that a tokenizer is asked for, those that every one has, and settings."""


def tokenizer(tmp: Path, tokens: Iterable[str] = (), named: Mapping[str, str] | None = None) -> Any:
    """Qwen's tokenizer with special `tokens`; `named` ones are its attributes, too."""
    named = dict(named or {})
    return tiles.tokenizer(tmp, sorted({*tokens, *named.values()}), named)


def source_of(processor_class: type) -> str:
    """The text of the module that the class is written in."""
    return inspect.getsource(sys.modules[processor_class.__module__])


def literal_tokens(source: str) -> set[str]:
    """Special tokens that stand in a processor's source."""
    return set(TOKEN.findall(source))


def named_tokens(source: str) -> dict[str, str]:
    """Special tokens that a processor's source asks its tokenizer for by name, with one made up
    for each; those for which it has a token of its own are left out."""
    names = set(re.findall(r"tokenizer\.(\w+)_token(?:_id)?\b", source))
    with_default = set(re.findall(r"""attr\(\w*\.?tokenizer, ["'](\w+)_token["']""", source))
    return {f"{name}_token": f"<{name}>" for name in names - with_default - {*NOT_NAMES}}


def token_attributes(processor: Any) -> set[str]:
    """The tokens that a processor holds as its attributes."""
    return {
        value
        for name, value in vars(processor).items()
        if name.endswith("_token") and isinstance(value, str) and value
    }


def part_class(attribute: str, model_types: Iterable[str]) -> type:
    """The class of a processor's image, video or audio processor.

    Raises:
        LookupError: transformers maps none to the model types.
    """
    for model_type in model_types:
        mapped = MAPPINGS[attribute].get(model_type)
        if isinstance(mapped, Mapping):
            mapped = mapped.get("torchvision") or mapped.get("pil")
        if mapped is not None:
            return getattr(transformers, mapped)
    raise LookupError(f"transformers maps no {attribute} to {', '.join(model_types)}")
