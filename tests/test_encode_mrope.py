"""mRoPE positions equal the models' own, sample by sample."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from processors import qwen_folders
from random_records import record
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen2VLConfig,
    Qwen2VLModel,
    Qwen3VLConfig,
    Qwen3VLModel,
)

from packidx.encode import ProcessorEncoder
from packidx.encode.mrope import mrope_positions

TEXT = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 16),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2),
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4},
}
VISION = {"depth": 1, "num_heads": 2, "spatial_merge_size": 2}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2-vl": (Qwen2VLConfig, Qwen2VLModel, {"embed_dim": 16, "hidden_size": 16}),
    "qwen2.5-vl": (Qwen2_5_VLConfig, Qwen2_5_VLModel, {"hidden_size": 16, "out_hidden_size": 16}),
    "qwen3-vl": (
        Qwen3VLConfig,
        Qwen3VLModel,
        {"hidden_size": 16, "out_hidden_size": 16, "deepstack_visual_indexes": []},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_model(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = qwen_folders(tmp_path_factory.getbasetemp() / "processors")[name]
    encoder = ProcessorEncoder(folder)
    config, kind, vision = MODELS[name]
    model = kind(config(text_config=TEXT, vision_config={**VISION, **vision}))
    multimodal = 0
    for seed in range(40):
        sample = encoder(record(random.Random(seed)))
        if "image_grid_thw" not in sample:
            length = len(sample["input_ids"])
            assert torch.equal(sample["position_ids"], torch.arange(length).expand(3, -1))
            continue
        multimodal += 1
        ids = sample["input_ids"][None]
        types = (ids == 151_655).int()
        grids = sample["image_grid_thw"]
        want, _ = model.get_rope_index(ids, types, image_grid_thw=grids)
        assert torch.equal(sample["position_ids"], want[:, 0]), seed
    assert multimodal > 10


def test_by_hand() -> None:
    got = mrope_positions(9, [2], [[1, 4, 6]], 2)  # 2 x 3 tokens
    assert got.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert mrope_positions(3, [], [], 2).tolist() == [[0, 1, 2]] * 3
    assert mrope_positions(4, [0], [[1, 4, 4]], 2).dtype == np.int64
