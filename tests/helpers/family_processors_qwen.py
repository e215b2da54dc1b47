"""Qwen's processors for tests: real classes, settings and vocabulary, and conversations with images
and video files. Qwen3.5 is Qwen3-VL's processor with a template of its own (in our words; Qwen's
older vocabulary stands in for its own).

Import `torchvision_cpu` and this module before anything of transformers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401
from processors import FEW_RANKS, qwen_folders
from random_records import image, text
from transformers import AutoProcessor
from transformers.video_utils import load_video

from packidx.encode.loading import load_processor
from packidx.processor.counter import ConversationCounter
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn, to_messages
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE

FAMILIES = {
    "qwen2-vl": "qwen2_vl",
    "qwen2.5-vl": "qwen2_5_vl",
    "qwen3-vl": "qwen3_vl",
    "qwen3.5": "qwen3_vl",
}
"""Folder → the family that packidx reads there."""

# Qwen3.5: contents are stripped, and thoughts kept after the last question only.
QWEN3_5_TEMPLATE = """\
{%- macro show(content, in_system) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' or 'image' in part -%}
                {{- raise_exception('an image in a system turn') if in_system else '' -}}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' or 'video' in part -%}
                {{- raise_exception('a video in a system turn') if in_system else '' -}}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- else -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set asked = namespace(last=-1) -%}
{%- for message in messages if message.role == 'user' -%}
    {%- set asked.last = messages.index(message) -%}
{%- endfor -%}
{{- raise_exception('no question') if asked.last < 0 else '' -}}
{%- for message in messages -%}
    {%- set content = show(message.content, message.role == 'system') | trim -%}
    {%- if message.role == 'system' -%}
        {{- raise_exception('a system turn that is not the first') if not loop.first else '' -}}
        {{- '<|im_start|>system\\n' ~ content ~ '<|im_end|>\\n' -}}
    {%- elif message.role == 'user' -%}
        {{- '<|im_start|>user\\n' ~ content ~ '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- set thought = '' -%}
        {%- if '</think>' in content -%}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] | trim -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if loop.index0 > asked.last -%}
            {{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' -}}
        {%- endif -%}
        {{- content ~ '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n<think>\\n' if add_generation_prompt else '' -}}
"""


@functools.cache
def qwen_processor(name: str, tmp: Path) -> tuple[Any, Path]:
    """One of `FAMILIES`: transformers' processor and the folder below `tmp` it was loaded from.

    Videos are decoded with transformers' own PyAV reader; its default one needs torchcodec.
    """
    folders = qwen_folders(tmp, FEW_RANKS)
    folder = folders.get(name, tmp / name)
    if name == "qwen3.5" and not folder.is_dir():
        newer = AutoProcessor.from_pretrained(folders["qwen3-vl"])
        newer.chat_template = QWEN3_5_TEMPLATE
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


def info_of(medium: Media) -> MediaInfo:
    """What estimating knows of a medium."""
    if medium.kind == "image":
        return MediaInfo(medium.ref.height, medium.ref.width)
    return media_info(medium, ANYWHERE)


def messages_of(talk: Conversation) -> list[dict[str, Any]]:
    """The messages that transformers is given: media opened or as paths."""
    messages = to_messages(talk)
    for turn, message in zip(talk.turns, messages, strict=True):
        if isinstance(message["content"], list):
            for part, given in zip(turn.parts, message["content"], strict=True):
                if isinstance(part, Media):
                    given[part.kind] = part.ref
    return messages


def run_processor(processor: Any, talk: Conversation, **options: Any) -> Any:
    """What the real processor makes of a conversation, as tensors."""
    return processor.apply_chat_template(
        messages_of(talk),
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs=options,
    )
