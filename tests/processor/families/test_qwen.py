"""Qwen's families count images as the real processors do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision_cpu  # noqa: F401  (before transformers)
from family_processors_qwen import (
    FAMILIES,
    conversation,
    qwen_counter,
    qwen_processor,
)
from family_talks import info_of, run_processor

from packidx.errors import SourceError
from packidx.format.schema import METHODS
from packidx.processor.families.qwen import QWEN2_5_VL, QWEN3_VL


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "processors"


@pytest.mark.parametrize("name", FAMILIES)
def test_conversations_with_images(name: str, tmp: Path) -> None:
    processor, _ = qwen_processor(name, tmp)
    thoughts = name != "qwen3.5"
    talks = [
        conversation(random.Random(f"{name}{i}"), largest=160, thoughts=thoughts)
        for i in range(320)
    ]
    counter = qwen_counter(name, tmp)
    files = counter.files
    assert files is not None and files.family == FAMILIES[name]
    counts = counter.count(talks, [[info_of(one) for one in talk.media] for talk in talks])
    assert not counts.errors
    assert set(counts.method.tolist()) == {METHODS.index("exact")}
    wrong, images = [], 0
    for number, talk in enumerate(talks):
        real = run_processor(processor, talk)
        rows = len(real["pixel_values"]) if talk.media else 0
        ids = real["input_ids"][0]
        placed = np.flatnonzero(ids.numpy() == processor.image_token_id)
        if (int(counts.length[number]), int(counts.vision_patches[number])) != (len(ids), rows):
            wrong.append(number)
        assert int(counts.image_tokens[number]) == len(placed)
        images += len(talk.media)
    assert not wrong
    assert images > 300


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"do_resize": False}, "video settings have do_resize false"),
        ({"size": {"height": 224, "width": 224}}, "needs shortest_edge and longest_edge"),
        ({"do_sample_frames": True, "fps": 2, "num_frames": 8}, "by fps 2 and num_frames 8"),
        ({"do_sample_frames": True, "fps": None, "num_frames": None}, "set one of them"),
    ],
)
@pytest.mark.parametrize("family", [QWEN2_5_VL, QWEN3_VL])
def test_video_settings_that_cannot_be_counted(
    family: Any, settings: dict[str, Any], text: str
) -> None:
    image, video = dict(family.image_defaults), dict(family.video_defaults)
    assert family.build(image, video, {}).video is not None
    with pytest.raises(SourceError, match=text):
        family.build(image, video | settings, {})
