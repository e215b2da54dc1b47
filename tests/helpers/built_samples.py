"""Samples that real processors build: of text alone, of one image and of several."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from every_processor import build, processor_classes
from every_processor.real import Opened
from PIL import Image

from packidx.encode.loading import load_processor
from packidx.encode.whole import build_sample
from packidx.records.read import parse_record

PER_TOKEN = ("input_ids", "mm_token_type_ids", "token_type_ids")
OTHERS = {"cosmos3_omni": "Qwen3VLProcessor", "glm_ocr": "Glm46VProcessor"}
"""Model types whose processors transformers does not name, and ones that fit."""


@cache
def processor_of(model_type: str, tmp: Path) -> tuple[Any, Path]:
    """A processor for the model type, and the folder below `tmp` that it was loaded from."""
    classes = processor_classes()
    name = OTHERS.get(model_type)
    if name is None:
        name = next(name for name, types in classes.items() if model_type in types)
    return build(name, classes[name], tmp)


def image(width: int, height: int) -> Image.Image:
    """Noise, the same for the same size."""
    pixels = np.random.default_rng((width, height)).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def said(*parts: Any) -> dict[str, Any]:
    """A record of one question, of text and images, and its answer."""
    kinds = ("text" if isinstance(part, str) else "image" for part in parts)
    content = [{"type": kind, kind: part} for kind, part in zip(kinds, parts, strict=True)]
    answer = [{"type": "text", "text": "Two of them."}]
    return {
        "messages": [
            {"role": "user", "content": content},
            {"role": "assistant", "content": answer},
        ]
    }


RECORDS = {
    "text": said("How many words are there?"),
    "one image": said("What is ", image(60, 90), "this?"),
    "images": said(image(70, 50), "and", image(44, 100), "differ how?"),
}


def built(processor: Any, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """One sample, per-token tensors [T]: as the real processor makes it, without its mask."""
    template = load_processor(folder).template
    assert template is not None
    return _flat(processor, dict(build_sample(processor, template, parse_record(record))))


def built_video(processor: Any, folder: Path, path: Path) -> dict[str, Any]:
    """The same of a question about one video."""
    template = load_processor(folder).template
    assert template is not None
    opened = Opened(processor)
    opened.add("video", str(path))
    content = [{"type": "video", "video": str(path)}, {"type": "text", "text": "What is it?"}]
    talk = parse_record({"messages": [{"role": "user", "content": content}]})
    text = template.render(talk).text
    options = {**opened.options, "return_tensors": "pt"}
    if type(processor).__name__ == "Cosmos3EdgeProcessor":
        options["return_metadata"] = True  # it asks its own video processor for it by this alone
    return _flat(processor, dict(processor(text=[text], **opened.media, **options)))


def _flat(processor: Any, sample: dict[str, Any]) -> dict[str, Any]:
    with_grids = any("grid_thw" in key for key in sample)
    if with_grids and "mm_token_type_ids" not in sample:
        sample["mm_token_type_ids"] = processor.create_mm_token_type_ids(
            np.asarray(sample["input_ids"]).tolist()
        )
    sample.pop("attention_mask", None)
    for name in PER_TOKEN:
        if name in sample:
            sample[name] = torch.as_tensor(np.asarray(sample[name])).reshape(-1).long()
    return sample
