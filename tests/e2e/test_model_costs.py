"""The cost model's weights equal the matrices of models that transformers builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401
import transformers

from packidx.plan.cost_model import CostModel, parse

TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 160_000,
}


TOWER: dict[str, Any] = {
    "depth": 5,
    "hidden_size": 32,
    "out_hidden_size": 48,
    "num_heads": 4,
    "intermediate_size": 56,
}


CLIP: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "image_size": 56,
    "patch_size": 14,
}


SIGLIP = CLIP | {"model_type": "siglip_vision_model", "vision_use_head": False}


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


RECURRENT = {
    "vocab_size": 250_000,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
}


# Config class: its parts, what a token meets beyond the model's matrices, Σ H over full layers and
# over windowed ones, patches per token in the projector, Σ D over the tower's full layers.
FAMILIES: dict[str, tuple[dict[str, Any], int, int, int, int, int]] = {
    "Qwen2VLConfig": (
        {
            "text_config": TEXT,
            "vision_config": {"depth": 3, "embed_dim": 32, "hidden_size": 48, "num_heads": 4},
        },
        0,
        4 * 48,
        0,
        4,
        3 * 32,
    ),
    "Qwen2_5_VLConfig": (
        {"text_config": TEXT, "vision_config": TOWER | {"fullatt_block_indexes": [1, 4]}},
        0,
        4 * 48,
        0,
        4,
        2 * 32,
    ),
    "Qwen3VLConfig": (
        {
            "text_config": TEXT | {"head_dim": 16},
            "vision_config": TOWER | {"deepstack_visual_indexes": [1, 3]},
        },
        0,
        4 * 96,
        0,
        4,
        5 * 32,
    ),
    "Qwen3VLMoeConfig": (
        {
            "text_config": TEXT | EXPERTS | {"head_dim": 16, "mlp_only_layers": [1]},
            "vision_config": TOWER | {"deepstack_visual_indexes": []},
        },
        -3 * (8 - 2) * 3 * 48 * 24,  # three layers' experts that a token does not meet
        4 * 96,
        0,
        4,
        5 * 32,
    ),
    "Qwen3_5Config": (
        {"text_config": TEXT | RECURRENT | {"head_dim": 16}, "vision_config": TOWER},
        3 * 3 * 6 * 8 * 12,  # three layers' states: read, updated, read
        96,
        0,
        4,
        5 * 32,
    ),
    "InternVLConfig": (
        {
            "text_config": TEXT | {"model_type": "qwen2"},
            "vision_config": CLIP | {"image_size": [56, 56], "patch_size": [14, 14]},
        },
        0,
        4 * 48,
        0,
        4,
        3 * 32,
    ),
    "LlavaOnevisionConfig": (
        {"text_config": TEXT | {"model_type": "qwen2"}, "vision_config": SIGLIP},
        0,
        4 * 48,
        0,
        1,
        3 * 32,
    ),
    "Gemma3Config": (
        {
            "text_config": TEXT
            | {"num_hidden_layers": 7, "head_dim": 8, "sliding_window": 64, "vocab_size": 270_000},
            "vision_config": SIGLIP,
            "mm_tokens_per_image": 4,
        },
        0,
        48,
        6 * 48,
        4,
        3 * 32,
    ),
}


def matrices(module: Any, only: str = "") -> int:
    """Weights in matrices and convolutions; tables that are looked up do not count."""
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if parameter.ndim >= 2 and "embed_tokens" not in name and "pos" not in name
        if "cls_token" not in name and only in name
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_those_of_the_real_model(name: str, tmp_path: Path) -> None:
    options, beyond, full, windowed, merge, far = FAMILIES[name]
    config = getattr(transformers, name)(**options)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    cost = CostModel.from_config(config.to_dict())
    language = matrices(model.model.language_model) + matrices(model.lm_head) + beyond
    assert cost.llm_linear == 6 * language
    assert (cost.llm_attention, cost.llm_windowed) == (6 * full, 6 * windowed)
    assert cost.llm_window == (64 if windowed else 0)

    parts = dict(model.model.named_children())
    tower = matrices(parts.get("visual", parts.get("vision_tower")))
    inside = matrices(parts["visual"], "merger") if "visual" in parts else 0
    outside = matrices(parts["multi_modal_projector"]) if "multi_modal_projector" in parts else 0
    projector = (inside + outside) / merge
    if name == "LlavaOnevisionConfig":
        assert projector > 48 * 48
    windows = 3 * 32 * 64 * 12 if name == "Qwen2_5_VLConfig" else 0  # 64 patches in each
    assert cost.vit_linear == 6 * (tower - inside + projector) + windows
    assert cost.vit_attention == 12 * far

    config.save_pretrained(tmp_path)
    assert CostModel.from_config(tmp_path) == cost == parse(str(tmp_path / "config.json"))


def test_defaults_are_those_of_transformers() -> None:
    kinds = {"gemma3_text": "Gemma3TextConfig", "siglip_vision_model": "SiglipVisionConfig"}
    kinds |= {"qwen2": "Qwen2Config", "llama": "LlamaConfig"}
    from packidx.plan.schedule.model_config import _DEFAULTS

    for kind, name in kinds.items():
        real = getattr(transformers, name)().to_dict()
        real["sliding_window_pattern"] = real.get("_sliding_window_pattern")
        assert _DEFAULTS[kind] == {key: real[key] for key in _DEFAULTS[kind]}
