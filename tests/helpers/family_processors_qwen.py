"""Qwen's processors for tests: real classes, settings and vocabulary, and conversations with images
and video files. Qwen3.5 is Qwen3-VL's processor with a template of its own (Qwen's older vocabulary
stands in for its own).

Import `torchvision_cpu` and this module before anything of transformers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401
from family_talks import image, text
from processors import FEW_RANKS, qwen_folders, trl_template
from transformers import AutoProcessor
from transformers.video_utils import load_video

from packidx.encode.loading import load_processor
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import Conversation, Media, Turn

FAMILIES = {
    "qwen2-vl": "qwen2_vl",
    "qwen2.5-vl": "qwen2_5_vl",
    "qwen3-vl": "qwen3_vl",
    "qwen3.5": "qwen3_vl",
}
"""Folder → the family that packidx reads there."""


@functools.cache
def qwen_processor(name: str, tmp: Path) -> tuple[Any, Path]:
    """One of `FAMILIES`: transformers' processor and the folder below `tmp` it was loaded from.

    Videos are decoded with transformers' own PyAV reader; its default one needs torchcodec.
    """
    folders = qwen_folders(tmp, FEW_RANKS)
    folder = folders.get(name, tmp / name)
    if name == "qwen3.5" and not folder.is_dir():
        newer = AutoProcessor.from_pretrained(folders["qwen3-vl"])
        newer.chat_template = trl_template("qwen3_5_think")
        newer.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)

    def fetch(videos: Any, sample_indices_fn: Any = None) -> Any:
        if isinstance(videos, list):
            return list(zip(*[fetch(one, sample_indices_fn) for one in videos], strict=True))
        return load_video(videos, backend="pyav", sample_indices_fn=sample_indices_fn)

    processor.video_processor.fetch_videos = fetch
    return processor, folder


@functools.cache
def qwen_counter(name: str, tmp: Path) -> ConversationCounter:
    """Packidx's side of it."""
    return ConversationCounter(load_processor(qwen_processor(name, tmp)[1]))


def conversation(
    rng: random.Random, clips: Sequence[Path] = (), *, largest: int = 300, thoughts: bool = True
) -> Conversation:
    """Questions and answers, perhaps after a system turn; no, one or several media in each.

    Args:
        clips: video files to take; none for images alone.
        largest: an image's longest side in pixels.
        thoughts: whether answers may hold any; templates that move them are tested elsewhere.
    """
    turns = [Turn("system", (text(rng),))] if rng.random() < 0.4 else []
    for _ in range(rng.choice([1, 1, 2, 3])):
        parts: list[str | Media] = [text(rng)] if rng.random() < 0.8 else []
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            if clips and rng.random() < 0.5:
                parts.append(Media("video", str(rng.choice(clips))))
            else:
                parts.append(Media("image", image(rng, largest)))
        parts += [text(rng)] if rng.random() < 0.6 else []
        rng.shuffle(parts)
        turns.append(Turn("user", tuple(parts) or (text(rng),)))
        answer = text(rng)
        if rng.random() < 0.2:
            answer = f"<think>\n{text(rng)}\n</think>\n\n{answer}"
        if not thoughts:
            answer = answer.replace("think>", "thing>")
        turns.append(Turn("assistant", (answer,)))
    return Conversation(tuple(turns))
