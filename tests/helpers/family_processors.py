"""Processors of further families for tests, made offline: real classes, real settings, real chat
templates, and Qwen's vocabulary with the family's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401, it must come before transformers
import transformers
from family_processors_tiles import tokenizer

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5, 0.5, 0.5]


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
        tokenizer=tokenizer(tmp, list(named.values()), named),
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
        tokenizer=tokenizer(tmp, tokens),
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
        tokenizer=tokenizer(tmp, tokens),
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


# OpenGVLab/InternVL3-1B-hf
INTERNVL_TEMPLATE = """\
{% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<IMG_CONTEXT>\\n' -}}
{%- elif part.type == 'video' -%}{{- '<video>\\n' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# What both GLM templates write for a user's parts.
_GLM_PARTS = """\
{%- macro parts_of(content) -%}
{%- if content is string -%}{{- content -}}{%- else -%}
{%- for part in content -%}
{%- if part.type == 'video' or 'video' in part -%}
{{- '<|begin_of_video|><|video|><|end_of_video|>' -}}
{%- elif part.type == 'image' or 'image' in part -%}
{{- '<|begin_of_image|><|image|><|end_of_image|>' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- '[gMASK]<sop>' -}}
"""
# zai-org/GLM-4.1V-9B-Thinking: nothing ends a turn but the next one.
GLM4V_TEMPLATE = f"""\
{_GLM_PARTS}
{{%- for message in messages -%}}
{{%- if message.role == 'system' -%}}{{{{- '<|system|>\\n' ~ message.content -}}}}
{{%- elif message.role == 'user' -%}}{{{{- '<|user|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'assistant' -%}}{{{{- '<|assistant|>\\n' ~ message.content -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|assistant|>\\n' -}}}}{{%- endif -%}}
"""
# zai-org/GLM-4.6V-Flash: answers are stripped, and thoughts kept after the last question only.
GLM46V_TEMPLATE = f"""\
{_GLM_PARTS}
{{%- set asked = namespace(last=-1) -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'user' -%}}{{%- set asked.last = loop.index0 -%}}{{%- endif -%}}
{{%- endfor -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'system' -%}}{{{{- '<|system|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'user' -%}}{{{{- '<|user|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'assistant' -%}}
{{%- set said = parts_of(message.content) -%}}{{%- set thought = '' -%}}
{{%- if '</think>' in said -%}}
{{%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}}
{{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}}
{{%- endif -%}}
{{{{- '<|assistant|>\\n<think>' -}}}}
{{{{- thought.strip() if loop.index0 > asked.last else '' -}}}}{{{{- '</think>' -}}}}
{{{{- '\\n' ~ said.strip() if said.strip() else '' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|assistant|>' -}}}}{{%- endif -%}}
"""

# moonshotai/Kimi-K2.5: a line end after each medium, and no thoughts in what was said before.
KIMI_TEMPLATE = """\
{%- for message in messages -%}
{%- set kind = {'user': 'user', 'assistant': 'assistant'}[message.role] or 'system' -%}
{{- '<|im_' ~ kind ~ '|>' ~ (message.name or message.role) ~ '<|im_middle|>' -}}
{{- '<think></think>' if message.role == 'assistant' else '' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{- '<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\\n' -}}
{%- elif part.type == 'video' -%}{{- '<|kimi_k25_video_placeholder|>\\n' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""
