"""Processors of no family of ours whose counts transformers gets wrong, or that add a token.

The real classes and class defaults, a short template, and Qwen's vocabulary with the tokens that
each needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import transformers

TEMPLATE = (
    "{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<end_of_turn>\n{% endfor %}"
)
GEMMA = {
    f"{name}_token": f"<{token}>"
    for name, token in {
        "image": "image_soft_token",
        "boi": "start_of_image",
        "eoi": "end_of_image",
        "audio": "audio_soft_token",
        "boa": "start_of_audio",
        "eoa": "end_of_audio",
    }.items()
}
MOLMO = {"image_token": "<|image|>", "video_token": "<|video|>"}
MOLMO_TOKENS = ["<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<frame_start>"]
MOLMO_TOKENS += ["<im_end>", "<frame_end>", "<im_low>"]


def _tokenizer(tmp: Path, named: dict[str, str], *tokens: str) -> Any:
    return tiles.tokenizer(
        tmp, [*named.values(), *tokens, "<start_of_turn>", "<end_of_turn>"], named
    )


def _template(token: str) -> str:
    return TEMPLATE.replace("IMAGE", token)


def gemma3n(tmp: Path) -> Any:
    """Two line breaks stand around each image."""
    return transformers.Gemma3nProcessor(
        transformers.Gemma3nAudioFeatureExtractor(),
        transformers.SiglipImageProcessor(size={"height": 56, "width": 56}),
        _tokenizer(tmp, GEMMA),
        chat_template=_template(GEMMA["image_token"]),
        image_seq_length=16,
    )


def gemma4(tmp: Path) -> Any:
    """Two markers stand around each image."""
    return transformers.Gemma4Processor(
        transformers.Gemma4AudioFeatureExtractor(),
        transformers.Gemma4ImageProcessor(),
        _tokenizer(tmp, GEMMA),
        transformers.Gemma4VideoProcessor(),
        chat_template=_template(GEMMA["image_token"]),
    )


def molmo2(tmp: Path) -> Any:
    """A BOS stands before every text."""
    return transformers.Molmo2Processor(
        transformers.Molmo2ImageProcessor(),
        transformers.Molmo2VideoProcessor(),
        _tokenizer(tmp, MOLMO, *MOLMO_TOKENS),
        chat_template=_template(MOLMO["image_token"]),
    )


PROCESSORS: dict[str, Callable[[Path], Any]] = {
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "molmo2": molmo2,
}
