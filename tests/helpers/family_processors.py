"""Processors of further families for tests, made offline: real classes, real settings, real chat
templates (`family_templates`), and Qwen's vocabulary with the family's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401, it must come before transformers
import transformers
from family_templates import GLM4V_TEMPLATE, GLM46V_TEMPLATE, INTERNVL_TEMPLATE, KIMI_TEMPLATE
from processors import FEW_RANKS, qwen_folders
from tokenizers import AddedToken

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5, 0.5, 0.5]


def _tokenizer(tmp: Path, tokens: Sequence[str], **named: str) -> Any:
    """Qwen's tokenizer with a family's tokens; `named` ones become its attributes."""
    folder = qwen_folders(tmp / "qwen", FEW_RANKS)["qwen2.5-vl"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, extra_special_tokens=named)
    added = [AddedToken(token, special=True, normalized=False) for token in tokens]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    return tokenizer


def _internvl(tmp: Path, side: int = 448) -> Any:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    settings: dict[str, Any] = {"size": {"height": side, "width": side}}
    settings |= {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD}
    images = transformers.GotOcr2ImageProcessor(**settings, crop_to_patches=False)
    return transformers.InternVLProcessor(
        image_processor=images,
        tokenizer=_tokenizer(tmp, list(named.values()), **named),
        video_processor=transformers.InternVLVideoProcessor(**settings),
        image_seq_length=(side // 28) ** 2,
        chat_template=INTERNVL_TEMPLATE,
    )


def _glm(tmp: Path, newer: bool) -> Any:
    tokens = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    for kind in ("image", "video"):
        tokens += [f"<|{kind}|>", f"<|begin_of_{kind}|>", f"<|end_of_{kind}|>"]
    names = "Glm46V" if newer else "Glm4v"
    make = lambda part: getattr(transformers, names + part)  # noqa: E731
    image = {"shortest_edge": 12_544, "longest_edge": 9_633_792}
    video = {"shortest_edge": 12_544, "longest_edge": 47_040_000}
    shared = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "patch_size": 14, "merge_size": 2}
    return make("Processor")(
        image_processor=make("ImageProcessor")(size=image, **shared),
        tokenizer=_tokenizer(tmp, tokens),
        video_processor=make("VideoProcessor")(size=video, **shared),
        chat_template=GLM46V_TEMPLATE if newer else GLM4V_TEMPLATE,
    )


def _kimi(tmp: Path) -> Any:
    tokens = ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|media_pad|>"]
    tokens += ["<|media_begin|>", "<|media_content|>", "<|media_end|>"]
    tokens += ["<|kimi_k25_video_placeholder|>"]
    settings = {"image_mean": HALF, "image_std": HALF, "patch_size": 14, "merge_size": 2}
    return transformers.Kimi_K25Processor(
        image_processor=transformers.Kimi_K25ImageProcessor(**settings, max_patches=16_384),
        tokenizer=_tokenizer(tmp, tokens),
        video_processor=transformers.Kimi_K25VideoProcessor(**settings, max_patches=4_096),
        chat_template=KIMI_TEMPLATE,
    )


_BUILD: dict[str, Callable[[Path], Any]] = {
    "internvl": _internvl,
    "internvl-small": lambda tmp: _internvl(tmp, 56),
    "glm4v": lambda tmp: _glm(tmp, False),
    "glm46v": lambda tmp: _glm(tmp, True),
    "kimi_k25": _kimi,
}


def family_processor(name: str, tmp: Path) -> tuple[Any, Path]:
    """A family's transformers processor, and the folder below `tmp` that it is saved in.

    Args:
        name: the family's; ``internvl-small`` has tiles of 56 pixels a side instead of 448.
    """
    processor, folder = _BUILD[name](tmp), tmp / name
    processor.save_pretrained(folder)
    return processor, folder
