"""Packs of the families whose pixels differ in shape from sample to sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from family_processors_tiles import idefics3, llava_next, llava_onevision, pixtral, smolvlm
from PIL import Image

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.torch import PackedDataset, collate

TEXT = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
}
VIT = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}


def _next(processor: Any) -> Any:
    side = processor.image_processor.crop_size["height"]
    return transformers.LlavaNextForConditionalGeneration, transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": side, "patch_size": 14}
        | {**VIT, "projection_dim": 8},
        image_grid_pinpoints=processor.image_processor.image_grid_pinpoints,
        text_config=TEXT,
        vision_feature_layer=-2,
    )


def _onevision(processor: Any) -> Any:
    side = processor.image_processor.size["height"]
    return transformers.LlavaOnevisionForConditionalGeneration, transformers.LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", "image_size": side, "patch_size": 14}
        | {**VIT, "vision_use_head": False},
        image_grid_pinpoints=processor.image_processor.image_grid_pinpoints,
        text_config=TEXT,
        vision_feature_layer=-1,
    )


def _pixtral(processor: Any) -> Any:
    return transformers.LlavaForConditionalGeneration, transformers.LlavaConfig(
        vision_config={"model_type": "pixtral", "image_size": 128, "patch_size": 16}
        | {**VIT, "head_dim": 4},
        text_config=TEXT,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def _idefics3(processor: Any) -> Any:
    side = processor.image_processor.max_image_size["longest_edge"]
    return transformers.Idefics3ForConditionalGeneration, transformers.Idefics3Config(
        vision_config={"image_size": side, "patch_size": 14, **VIT},
        text_config=TEXT,
        scale_factor=2,
    )


def _smolvlm(processor: Any) -> Any:
    side = processor.image_processor.max_image_size["longest_edge"]
    return transformers.SmolVLMForConditionalGeneration, transformers.SmolVLMConfig(
        vision_config={"image_size": side, "patch_size": 16, **VIT},
        text_config=TEXT,
        scale_factor=4,
    )


FAMILIES: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "llava_next": (lambda tmp: llava_next(tmp, scale=6), _next),
    "llava_onevision": (lambda tmp: llava_onevision(tmp, side=56), _onevision),
    "pixtral": (lambda tmp: pixtral(tmp, longest_edge=128), _pixtral),
    "idefics3": (lambda tmp: idefics3(tmp, side=56), _idefics3),
    "smolvlm": (lambda tmp: smolvlm(tmp, side=128), _smolvlm),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_packs_of_families_whose_pixels_differ_in_shape(tmp_path: Path, name: str) -> None:
    """Their models get what they want: packed logits are those of each sample alone."""
    build, model_of = FAMILIES[name]
    processor = build(tmp_path)
    processor.save_pretrained(tmp_path / name)
    with open(tmp_path / "data.jsonl", "w") as file:
        for number, sizes in enumerate([[(40, 130)], [], [(56, 56), (90, 30)], [(200, 90)]]):
            images = []
            for place, size in enumerate(sizes):
                pixels = np.random.default_rng(number).integers(0, 255, (*size[::-1], 3), np.uint8)
                images.append(f"{number}-{place}.png")
                Image.fromarray(pixels).save(tmp_path / images[-1])
            content = [{"type": "image", "image": one} for one in images]
            turns = [
                {"role": "user", "content": [*content, {"type": "text", "text": f"{number}?"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "So " * (number + 1)}]},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    data, processor_folder = str(tmp_path / "data.jsonl"), tmp_path / name
    estimate_lengths(data, tmp_path / "lengths", processor=processor_folder, workers=1)
    plan_packs(tmp_path / "lengths", tmp_path / "index", capacity=8192)
    encoder = ProcessorEncoder(str(processor_folder))
    dataset = PackedDataset(tmp_path / "index", encoder)
    pack = dataset[0]
    assert len(pack["sample_ids"]) == 4, "all in one pack"
    kind, config = model_of(processor)
    config.text_config.vocab_size = len(processor.tokenizer)
    config.image_token_id = config.image_token_index = encoder.media_token_ids["image"]
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
        packed = model(**collate(pack)).logits[0]
        bounds = pack["cu_seqlens"].tolist()
        for at, sample in enumerate(dataset.index.pack(0).samples):
            part = dataset._reader.read(sample, 0, [])
            alone = model(input_ids=part.input_ids[None], use_cache=False, **part.media).logits[0]
            torch.testing.assert_close(
                packed[bounds[at] : bounds[at + 1]], alone, rtol=1e-4, atol=1e-5
            )
