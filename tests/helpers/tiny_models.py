"""Tiny random models of six families, samples for them, and each sample on its own.

Every model has two text layers in which every weight matters: the default initialisation is so
small that a leak between samples would hardly show.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from small_packs import make_index, record
from torch_packs import IMAGE, VIDEO, VISION_END, VISION_START, VOCABULARY, SyntheticEncode

from packidx.torch import Pack, PackedDataset
from packidx.torch.packs import Segment

FAMILIES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl",
    "gemma3",
    "qwen3",
)
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
# By the name that transformers 4 reads; transformers 5 takes it for rope_parameters.
MROPE = {
    "rope_scaling": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    "rope_theta": 10000.0,
}
QWEN_TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}
QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
VIT = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def _qwen2_vl() -> tuple[Any, Any]:
    vision = {**QWEN_VISION, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
    text = {**TEXT, **MROPE}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen2VLForConditionalGeneration, config


def _qwen2_5_vl() -> tuple[Any, Any]:
    vision = {**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1]}
    text = {**TEXT, **MROPE}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen2_5_VLForConditionalGeneration, config


def _qwen3_vl() -> tuple[Any, Any]:
    vision = {**QWEN_VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text = {**TEXT, **MROPE}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen3VLForConditionalGeneration, config


def _internvl() -> tuple[Any, Any]:
    vision = {**VIT, "image_size": [8, 8], "patch_size": [4, 4]}
    text = {**TEXT, "model_type": "qwen2"}
    config = transformers.InternVLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, image_seq_length=1
    )
    return transformers.InternVLForConditionalGeneration, config


def _gemma3() -> tuple[Any, Any]:
    vision = {**VIT, "image_size": 16, "patch_size": 4, "vision_use_head": False}
    layers = ["sliding_attention", "full_attention"]
    text = {**TEXT, "sliding_window": 6, "layer_types": layers, "query_pre_attn_scalar": 8}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_id=IMAGE,
        image_token_index=IMAGE,
        boi_token_index=VISION_START,
        eoi_token_index=VISION_END,
    )
    return transformers.Gemma3ForConditionalGeneration, config


def _qwen3() -> tuple[Any, Any]:
    return transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**TEXT)


def _qwen3_5() -> tuple[Any, Any]:
    layers = ["linear_attention", "full_attention"]
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    linear |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    vision = {**QWEN_VISION, "num_position_embeddings": 64}
    text = {**TEXT, **linear, **MROPE, "layer_types": layers}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen3_5ForConditionalGeneration, config


_BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "internvl": _internvl,
    "gemma3": _gemma3,
    "qwen3": _qwen3,
    "qwen3_5": _qwen3_5,
}


def fresh(family: str, attention: str = "sdpa", sliding_window: int | None = None) -> Any:
    """A model of its own, for tests that change it; its vision tower attends by sdpa."""
    kind, config = _BUILDERS[family]()
    if sliding_window is not None:
        text = config.get_text_config()
        text.sliding_window = sliding_window
        text.layer_types = ["full_attention", "sliding_attention"]
    torch.manual_seed(0)
    flex = attention == "flex_attention"
    model = kind._from_config(config, attn_implementation="sdpa" if flex else attention).eval()
    if flex:  # set afterwards: transformers asks Qwen-VL's classes, which never claimed it
        config.get_text_config()._attn_implementation = attention
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15, generator=generator)
    return model


tiny = cache(fresh)

# Several samples, several images, one text-only sample between.
QWEN_RECORDS = [
    record(1, [5, (4, 6), 7, (8, 4), 6]),
    record(2, [9]),
    record(3, [2, (4, 4), (2, 8), 11]),
    record(4, [4, (6, 6), 3]),
]
ONE_SIZE = [  # 4 tokens an image
    record(1, [5, (4, 4), 7, (4, 4), 6]),
    record(2, [9]),
    record(3, [2, (4, 4), 1, (4, 4), 11]),
    record(4, [4, (4, 4), 3]),
]
RECORDS = dict.fromkeys(FAMILIES, QWEN_RECORDS)
RECORDS |= {"gemma3": ONE_SIZE}
RECORDS |= {"qwen3": [record(n, [5 + 7 * n]) for n in range(3)]}


class TinyEncode(SyntheticEncode):
    """A record of `RECORDS[family]` -> what the family's processor would return for it."""

    def __init__(self, family: str, model: Any) -> None:
        super().__init__(patch_dim=3 * 2 * 4 * 4, rope=None, types=True)
        self.family, self.model = family, model

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        result = super().__call__(record)
        if self.family == "qwen3":
            return {"input_ids": result["input_ids"]}
        if self.family.startswith("qwen"):
            return {**result, "position_ids": rope_rows(self.model.model, result)}
        types = result.pop("mm_token_type_ids")
        result.pop("pixel_values", None)
        grid = result.pop("image_grid_thw", None)
        if self.family == "gemma3":
            result["token_type_ids"] = types
        if grid is not None:
            tokens = (grid.prod(-1) // 4).tolist()
            generator = torch.Generator().manual_seed(record["seed"])
            result |= getattr(self, f"_{self.family}")(tokens, generator)
        return result

    def _internvl(self, tokens: list[int], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values": torch.randn(sum(tokens), 3, 8, 8, generator=generator)}

    def _gemma3(self, tokens: list[int], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values": torch.randn(len(tokens), 3, 16, 16, generator=generator)}


def rope_rows(model: Any, encoded: dict[str, Any]) -> torch.Tensor:
    """mRoPE positions [3, T] of one sample, by the model's own function."""
    index = model.get_rope_index
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    given = {name: encoded[name] for name in names if name in encoded}
    if "mm_token_type_ids" in inspect.signature(index).parameters:  # transformers 5.6 and later
        given["mm_token_type_ids"] = encoded["mm_token_type_ids"][None]
    rows, _ = index(encoded["input_ids"][None], **given)
    return rows[:, 0]


def alone(model: Any, encoded: dict[str, Any]) -> Any:
    """The output for one sample, computed in the plainest way there is, its loss included.

    The mask is what processors return; without it Qwen3-VL of transformers 4.57 and 5.0 cuts a
    sample at its images.
    """
    rows = ("input_ids", "token_type_ids", "mm_token_type_ids", "labels", "attention_mask")
    inputs = {key: value for key, value in encoded.items() if key != "position_ids"}
    inputs = {"labels": encoded["input_ids"], **inputs}
    inputs["attention_mask"] = torch.ones_like(encoded["input_ids"])
    inputs = {key: value[None] if key in rows else value for key, value in inputs.items()}
    return model(**inputs)


def packs_of(folder: Path, family: str, capacity: int = 128, **options: Any) -> list[Pack]:
    """The packs of the family's records; capacity 128 holds them all."""
    index = make_index(folder, {"all": RECORDS[family]}, capacity=capacity, **options)
    dataset = PackedDataset(index, TinyEncode(family, tiny(family)))
    return list(dataset)


def encoded_samples(family: str, pack: Pack) -> list[dict[str, Any]]:
    """What encode returned for each sample of `pack`."""
    encode = TinyEncode(family, tiny(family))
    return [encode(RECORDS[family][sample]) for sample in pack.sample_ids.tolist()]


def worst_difference(model: Any, family: str, packs: list[Pack], logits: torch.Tensor) -> float:
    """Largest difference between packed logits [B, T, V] and those of each sample alone.

    `model` runs the samples; where `logits` have one row, the packs stand in it one after another.
    """
    worst, samples, offset = 0.0, 0, 0
    for row, pack in enumerate(packs):
        flat = logits[0, offset:] if len(logits) == 1 else logits[row]
        bounds = pack.joined()["cu_seqlens"].tolist()
        for start, encoded in zip(bounds, encoded_samples(family, pack), strict=False):
            with torch.no_grad():
                own = alone(model, encoded).logits[0]
            worst = max(worst, float((flat[start : start + len(own)] - own).abs().max()))
            samples += 1
        offset += bounds[-1]
    assert samples == sum(len(pack.samples) for pack in packs) > 1
    assert logits.std() > 0.5
    return worst


def video_pack(family: str) -> Pack:
    """Two samples of a Qwen-VL, a video and an image in each, as one pack."""
    segments = []
    for seed in range(2):
        sample = with_video(family, seed)
        ids = sample["input_ids"]
        rows = rope_rows(tiny(family).model, sample)
        segments.append(Segment({**sample, "labels": ids, "position_ids": rows}, len(ids)))
    numbers, sources = torch.arange(2), torch.zeros(2, dtype=torch.int64)
    return Pack(0, 0, numbers, sources, numbers, segments)


def with_video(family: str, seed: int) -> dict[str, Any]:
    """4 tokens of an image, then 2 + seed times of 6 tokens; Qwen3-VL has text between them."""
    times, generator = 2 + seed, torch.Generator().manual_seed(seed)
    image, frame = [IMAGE] * 4, [VIDEO] * 6
    marked = [VISION_START, *frame, VISION_END]
    video = [5, *marked] * times if family == "qwen3_vl" else [VISION_START, *frame * times, 91]
    ids = torch.tensor([3, VISION_START, *image, VISION_END, 7, 8, *video, 9, 10 + seed])
    result = {
        "input_ids": ids,
        "mm_token_type_ids": (ids == IMAGE).long() + 2 * (ids == VIDEO).long(),
        "pixel_values": torch.randn(16, 96, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "pixel_values_videos": torch.randn(times * 24, 96, generator=generator),
        "video_grid_thw": torch.tensor([[times, 4, 6]]),
    }
    if family == "qwen2_5_vl":
        result["second_per_grid_ts"] = torch.tensor([1.0])
    return result
