"""Gemma 3 counts as transformers' processor does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import family_talks
import pytest
from PIL import Image
from transformers import Gemma3Processor

from packidx.processor.counter import ConversationCounter
from packidx.processor.families import FAMILIES
from packidx.records.read import parse_record

FAMILY = FAMILIES["Gemma3Processor"]


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gemma3")


def test_newlines_merge_with_the_text_beside_an_image(tmp: Path) -> None:
    """The newlines of an image and those of the text beside it are one token."""
    processor = tiles.gemma3(tmp, 224)
    processor.chat_template = processor.chat_template.replace(" | trim", "")
    files = tiles.saved(processor, tmp / "newlines")
    text, picture = {"type": "text", "text": "\nHello\n"}, Image.new("RGB", (20, 20))
    parts = [text, {"type": "image", "image": picture}, text]
    messages = [{"role": "user", "content": parts}]
    outputs = processor.apply_chat_template(messages, tokenize=True, return_dict=True)
    ids, _ = family_talks.counted(ConversationCounter(files), parse_record({"messages": messages}))
    assert ids == outputs["input_ids"][0]
    assert files.tokenizer is not None
    merged = files.tokenizer.encode("\n\n\n", add_special_tokens=False).ids
    assert len(merged) == 1 and ids.count(merged[0]) == 2


def test_a_folder_cannot_switch_pan_and_scan_on(tmp: Path) -> None:
    """The processor's own `images_kwargs` override the image processor's settings."""
    processor = tiles.gemma3(tmp, 224)
    for name, value in {**Gemma3Processor.images_kwargs, "do_pan_and_scan": True}.items():
        setattr(processor.image_processor, name, value)
    files = tiles.saved(processor, tmp / "switched")
    loaded = Gemma3Processor.from_pretrained(tmp / "switched")
    assert loaded.image_processor.do_pan_and_scan
    picture = Image.new("RGB", (1600, 300))
    messages = [{"role": "user", "content": [{"type": "image", "image": picture}]}]
    outputs = loaded.apply_chat_template(messages, tokenize=True, return_dict=True)
    ids, counts = family_talks.counted(
        ConversationCounter(files), parse_record({"messages": messages})
    )
    assert ids == outputs["input_ids"][0]
    assert counts.media.grid[:, 0].tolist() == [len(outputs["pixel_values"])] == [1]
    alone = loaded.image_processor([picture])["pixel_values"]
    passed_on: Any = files.vision
    assert len(alone) == 5  # what `image_options` are for
    assert len(loaded.image_processor([picture], **passed_on.image_options)["pixel_values"]) == 1


def test_what_it_passes_on_is_the_class() -> None:
    vision: Any = FAMILY.build(
        dict(FAMILY.image_defaults) | {"size": {"height": 896, "width": 896}},
        {},
        dict(FAMILY.own_defaults),
    )
    assert vision.image_options == Gemma3Processor.images_kwargs
