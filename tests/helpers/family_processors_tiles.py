"""Processor folders of the families whose images become tiles, rows or squares.

The real processor, image processor and video processor classes with the settings of a checkpoint,
and that checkpoint's chat template; Qwen's vocabulary with the family's special tokens stands in
for its own tokenizer, which cannot be had offline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401  (before transformers)
from processors import FEW_RANKS, qwen_folders, trl_template
from tokenizers import AddedToken
from transformers import (
    AutoTokenizer,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    PixtralImageProcessor,
    PixtralProcessor,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)
from transformers.models.clip.image_processing_clip import CLIPImageProcessor

from packidx.encode.loading import load_processor
from packidx.processor.assemble import ProcessorFiles

LLAVA_ONEVISION = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}"
    "{{ '<video>' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\\n' + content['text'] }}{% endfor %}"
    "{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ '\\n' + content['text'] }}{% endgeneration %}{% endfor %}"
    "{% endif %}{{'<|im_end|>'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAVA_VICUNA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' '}}{% endfor %}"
    "{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
MISTRAL3 = """\
{{- bos_token }}
{%- set rest = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
    {{- '[SYSTEM_PROMPT]' + messages[0]['content'][0]['text'] + '[/SYSTEM_PROMPT]' }}
{%- endif %}
{%- for message in rest %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' }}
        {%- for block in message['content'] %}
            {{- block['text'] if block['type'] == 'text' else '[IMG]' }}
        {%- endfor %}
        {{- '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'][0]['text'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
IDEFICS3 = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}"
    "{% elif line['type'] == 'video' %}{{ '<video>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def tokenizer(tmp: Path, tokens: list[str], named: dict[str, str] | None = None) -> Any:
    """Qwen's tokenizer with a family's special tokens; `named` ones become attributes, too."""
    folder = qwen_folders(tmp, FEW_RANKS)["qwen2.5-vl"]
    made = AutoTokenizer.from_pretrained(folder, extra_special_tokens=named or {})
    added = [AddedToken(token, special=True, normalized=False) for token in tokens]
    made.add_special_tokens({"additional_special_tokens": added})
    return made


def llava(tmp: Path) -> Any:
    """llava-hf/llava-1.5-7b-hf"""
    images = CLIPImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    )
    return LlavaProcessor(
        images,
        tokenizer(tmp, ["<image>"]),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_VICUNA,
    )


def llava_next(tmp: Path, scale: int = 1) -> Any:
    """llava-hf/llava-v1.6-mistral-7b-hf; all sizes divided by `scale`"""
    side = 336 // scale
    pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    images = LlavaNextImageProcessor(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_grid_pinpoints=[[height // scale, width // scale] for height, width in pinpoints],
    )
    return LlavaNextProcessor(
        images,
        tokenizer(tmp, ["<image>"]),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=trl_template("llava_next"),
    )


def llava_onevision(tmp: Path, side: int = 384, **video: Any) -> Any:
    """llava-hf/llava-onevision-qwen2-7b-ov-hf; tiles of `side` pixels"""
    edges = [side * number for number in range(1, 7)]
    images = LlavaOnevisionImageProcessor(
        size={"height": side, "width": side},
        image_grid_pinpoints=[[height, width] for height in edges for width in edges],
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    videos = LlavaOnevisionVideoProcessor(size={"height": side, "width": side}, **video)
    return LlavaOnevisionProcessor(
        images,
        tokenizer(tmp, ["<image>", "<video>"]),
        videos,
        num_image_tokens=(side // 14) ** 2,
        vision_feature_select_strategy="full",
        chat_template=LLAVA_ONEVISION,
    )


def gemma3(tmp: Path, side: int = 896, **images_kwargs: Any) -> Any:
    """google/gemma-3-4b-it; with `images_kwargs`, for instance ``do_pan_and_scan``"""
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    texts = tokenizer(tmp, ["<bos>", "<start_of_turn>", "<end_of_turn>", *named.values()], named)
    texts.bos_token = "<bos>"
    images = Gemma3ImageProcessor(size={"height": side, "width": side})
    template, number = trl_template("gemma3"), (side // 56) ** 2
    made = Gemma3Processor(images, texts, chat_template=template, image_seq_length=number)
    if images_kwargs:
        made.images_kwargs = {**made.images_kwargs, **images_kwargs}
    return made


def pixtral(tmp: Path, longest_edge: int = 1024, merge: int = 1) -> Any:
    """mistral-community/pixtral-12b; Mistral-Small-3.1: patches of 14 pixels, 1540, merge 2"""
    texts = tokenizer(
        tmp,
        ["<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
        + ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    )
    texts.bos_token = "<s>"
    patch = 14 if merge > 1 else 16
    images = PixtralImageProcessor(
        size={"longest_edge": longest_edge}, patch_size={"height": patch, "width": patch}
    )
    return PixtralProcessor(
        images, texts, patch_size=patch, spatial_merge_size=merge, chat_template=MISTRAL3
    )


_TILE_TOKENS = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
_TILE_TOKENS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


def idefics3(tmp: Path, side: int = 364, **images: Any) -> Any:
    """HuggingFaceM4/Idefics3-8B-Llama3; tiles of `side` pixels"""
    settings = {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}
    return Idefics3Processor(
        Idefics3ImageProcessor(**{**settings, **images}),
        tokenizer(tmp, _TILE_TOKENS),
        image_seq_len=(side // 14 // 2) ** 2,
        chat_template=IDEFICS3,
    )


def smolvlm(tmp: Path, side: int = 512, fps: float = 1, max_frames: int = 64) -> Any:
    """HuggingFaceTB/SmolVLM2-500M-Video-Instruct; tiles of `side` pixels"""
    settings: dict[str, Any] = {"max_image_size": {"longest_edge": side}}
    sampling = {"fps": fps, "max_frames": max_frames, "video_size": {"longest_edge": side}}
    return SmolVLMProcessor(
        SmolVLMImageProcessor(size={"longest_edge": 4 * side}, **settings),
        tokenizer(tmp, _TILE_TOKENS),
        SmolVLMVideoProcessor(size={"longest_edge": side}, video_sampling=sampling, **settings),
        image_seq_len=(side // 16 // 4) ** 2,
        chat_template=IDEFICS3,
    )


def saved(processor: Any, folder: Path) -> ProcessorFiles:
    """What packidx reads of a processor's folder."""
    processor.save_pretrained(folder)
    return load_processor(folder)
