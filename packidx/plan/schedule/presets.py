"""Dimensions of well-known models, as their ``config.json`` has them: cost models by name."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _text(hidden: int, layers: int, heads: int, keys: int, inner: int, vocab: int) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": inner,
        "vocab_size": vocab,
    }


_QWEN25_7B = _text(3584, 28, 28, 4, 18944, 152064)
_QWEN3_8B = _text(4096, 36, 32, 8, 12288, 151936) | {"head_dim": 128}
_QWEN_TOWER: Config = {"temporal_patch_size": 2, "spatial_merge_size": 2}
_QWEN2_TOWER = _QWEN_TOWER | {
    "model_type": "qwen2_vl",
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "patch_size": 14,
}
_QWEN25_TOWER = _QWEN_TOWER | {
    "model_type": "qwen2_5_vl",
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def _qwen3_tower(depth: int, width: int, inner: int, deepstack: list[int]) -> Config:
    return _QWEN_TOWER | {
        "model_type": "qwen3_vl",
        "depth": depth,
        "hidden_size": width,
        "intermediate_size": inner,
        "patch_size": 16,
        "deepstack_visual_indexes": deepstack,
    }


def _vit(hidden: int, layers: int, inner: int) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "patch_size": 14,
    }


_INTERN_TOWER = _vit(1024, 24, 4096)
_SIGLIP = _vit(1152, 27, 4304) | {"image_size": 896}
_QWEN3_TOWER = _qwen3_tower(27, 1152, 4304, [8, 16, 24])

PRESETS: dict[str, Config] = {
    "qwen2-vl-7b": {"text_config": _QWEN25_7B, "vision_config": _QWEN2_TOWER},
    "qwen2.5-vl-3b": {
        "text_config": _text(2048, 36, 16, 2, 11008, 151936),
        "vision_config": _QWEN25_TOWER,
    },
    "qwen2.5-vl-7b": {"text_config": _QWEN25_7B, "vision_config": _QWEN25_TOWER},
    "qwen2.5-vl-72b": {
        "text_config": _text(8192, 80, 64, 8, 29568, 152064),
        "vision_config": _QWEN25_TOWER,
    },
    "qwen3-vl-4b": {
        "text_config": _text(2560, 36, 32, 8, 9728, 151936) | {"head_dim": 128},
        "vision_config": _qwen3_tower(24, 1024, 4096, [5, 11, 17]),
    },
    "qwen3-vl-8b": {"text_config": _QWEN3_8B, "vision_config": _QWEN3_TOWER},
    "qwen3-vl-30b-a3b": {
        "text_config": _text(2048, 48, 32, 4, 6144, 151936)
        | {
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        "vision_config": _QWEN3_TOWER,
    },
    "internvl3-8b": {
        "text_config": _text(3584, 28, 28, 4, 18944, 151674),
        "vision_config": _INTERN_TOWER,
        "downsample_ratio": 0.5,
    },
    "llava-onevision-7b": {
        "text_config": _text(3584, 28, 28, 4, 18944, 152128),
        "vision_config": _SIGLIP | {"num_hidden_layers": 26, "image_size": 384},
    },
    "gemma3-4b": {
        "text_config": _text(2560, 34, 8, 4, 10240, 262208)
        | {"head_dim": 256, "sliding_window": 1024, "sliding_window_pattern": 6},
        "vision_config": _SIGLIP,
        "mm_tokens_per_image": 256,
    },
    "text-8b": _text(4096, 32, 32, 8, 14336, 128256),
}
