"""mRoPE positions equal the models' own, sample by sample."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from clips import write_clip
from family_processors_qwen import (
    conversation,
    qwen_counter,
    qwen_processor,
)
from family_talks import info_of, record, run_processor
from processors import qwen_folders

from packidx.encode import ProcessorEncoder
from packidx.encode.positions import mrope_positions

TEXT = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 16),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2),
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4},
}
VISION = {"depth": 1, "num_heads": 2, "spatial_merge_size": 2, "hidden_size": 16}
OUTPUT = {"out_hidden_size": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-vl": ("Qwen2VL", {"embed_dim": 16}),
    "qwen2.5-vl": ("Qwen2_5_VL", OUTPUT),
    "qwen3-vl": ("Qwen3VL", {**OUTPUT, "deepstack_visual_indexes": []}),
    "qwen3.5": ("Qwen3_5", OUTPUT),
}


def tiny_model(name: str, **vision: Any) -> Any:
    """The family's model, randomly initialised."""
    prefix, extra = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(
        text_config=TEXT, vision_config={**VISION, **extra, **vision}
    )
    return getattr(transformers, f"{prefix}Model")(config)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_encoded_images_equal_the_model(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder: Path = qwen_folders(tmp_path_factory.getbasetemp() / "processors")[name]
    encoder = ProcessorEncoder(folder)
    model = tiny_model(name)
    multimodal = 0
    for seed in range(40):
        sample = encoder(record(random.Random(seed), late_system=False))
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


@pytest.mark.parametrize("tokens_per_second", [2, 25])
def test_seconds_of_videos_equal_the_model(
    tokens_per_second: int, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = qwen_folders(tmp_path_factory.getbasetemp() / "processors")["qwen2.5-vl"]
    encoder = ProcessorEncoder(folder, tokens_per_second=tokens_per_second)
    clip = write_clip(tmp_path / "a.mp4", frames=24, size=(64, 130), fps="30000/1001")
    video = {"type": "video", "video": str(clip)}
    sample = encoder({"messages": [{"role": "user", "content": [video, video]}]})
    ids = sample["input_ids"][None]
    given = {key: sample[key] for key in ("video_grid_thw", "second_per_grid_ts")}
    model = tiny_model("qwen2.5-vl", tokens_per_second=tokens_per_second)
    want, _ = model.get_rope_index(ids, 2 * (ids == 151_656).int(), **given)
    assert torch.equal(sample["position_ids"], want[:, 0])
    assert len(sample["position_ids"][0].unique()) > len(ids[0]) - (ids == 151_656).sum()


@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3.5"])
def test_videos_equal_the_model(
    name: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    tmp = tmp_path_factory.getbasetemp() / "processors"
    processor, counter = qwen_processor(name, tmp)[0], qwen_counter(name, tmp)
    model = tiny_model(name)
    clips = [
        write_clip(tmp_path / "a.mp4", frames=13, size=(98, 66)),
        write_clip(tmp_path / "b.mp4", frames=24, size=(64, 130), fps="30000/1001"),
        write_clip(tmp_path / "c.mp4", frames=5, size=(48, 40), fps="7/3"),
    ]
    videos = 0
    for seed in range(30):
        rng = random.Random(f"{name}{seed}")
        talk = conversation(rng, clips, largest=90, thoughts=name != "qwen3.5")
        real = run_processor(processor, talk)
        names = ("image_grid_thw", "video_grid_thw")
        grids = {key: real[key] for key in names if key in real}
        want, _ = model.get_rope_index(real["input_ids"], real["mm_token_type_ids"], **grids)

        media = counter.count_media([talk], [[info_of(one) for one in talk.media]])
        assert not media.errors
        runs = [len(medium) for medium in counter.expand(talk, 0, media).runs]
        is_feature = np.isin(real["input_ids"][0].numpy(), counter.files.feature_ids)
        firsts = np.flatnonzero(is_feature & ~np.roll(is_feature, 1))
        starts = np.split(firsts, np.cumsum(runs)[:-1]) if runs else []
        got = mrope_positions(
            real["input_ids"].shape[1], [own.tolist() for own in starts], media.grid.tolist(), 2
        )
        videos += sum(medium.kind == "video" for medium in talk.media)
        assert np.array_equal(got, want[:, 0].numpy()), seed
    assert videos > 15
