"""GLM-4.1V and GLM-4.6V: counts equal the real processors'."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import family_talks
import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401, it must come before transformers
import transformers
from family_processors import family_processor
from transformers.video_utils import VideoMetadata

from packidx.encode.positions import mrope_positions
from packidx.processor.families.base import FamilyMedia
from packidx.processor.families.qwen import GLM4V, GLM46V
from packidx.processor.fingerprint import complete_settings
from packidx.records.conversation import MediaInfo

# Of transformers' create_mm_token_type_ids, where tensors are asked for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FAMILIES = {"glm4v": GLM4V, "glm46v": GLM46V}
NAMES = {"glm4v": "Glm4v", "glm46v": "Glm46V"}
SIZES = [(1, 1), (3, 500), (500, 3), (28, 28), (2, 27), (420, 300), (333, 97)]
LENGTHS = {"glm4v": [1, 2, 3, 9, 30], "glm46v": [20, 30, 47]}


def theirs(name: str, part: str) -> Any:
    return getattr(transformers, NAMES[name] + part)


def vision(name: str, video: dict[str, Any] | None = None, **image: Any) -> FamilyMedia:
    family = FAMILIES[name]
    settings = complete_settings(image, family.image_defaults)
    return family.build(settings, complete_settings(video or {}, family.video_defaults), {})


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def glm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, Path]:
    return request.param, *family_processor(request.param, tmp_path_factory.mktemp("glm"))


def patches(real: Any) -> int:
    return sum(len(real[key]) for key in ("pixel_values", "pixel_values_videos") if key in real)


def test_lengths_patches_and_places_equal_the_real_processors(glm: tuple[str, Any, Path]) -> None:
    name, processor, folder = glm
    rng = random.Random(1)
    talks = [family_talks.conversation(rng, SIZES) for _ in range(200)]
    talks += [family_talks.conversation(rng, SIZES, LENGTHS[name]) for _ in range(140)]
    found = family_talks.compare(name, folder, processor, talks, patches)
    assert found == {"ids": 0, "patches": 0, "media": 0}


def test_tensors_equal_the_real_processors(glm: tuple[str, Any, Path]) -> None:
    _, processor, folder = glm
    rng = random.Random(2)
    talks = [family_talks.conversation(rng, SIZES, [2, 5]) for _ in range(40)]
    names = ["pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"]
    assert family_talks.encoder_differences(folder, processor, talks, names) == 0


def test_images_are_counted_as_the_real_processor_counts() -> None:
    real = theirs("glm4v", "ImageProcessor")(size={"shortest_edge": 3136, "longest_edge": 200_000})
    family = vision("glm4v", size={"shortest_edge": 3136, "longest_edge": 200_000})
    sizes = np.random.default_rng(5).integers(10, 900, (2000, 2))
    expected = [real.get_number_of_image_patches(h, w) for h, w in sizes.tolist()]
    counts = family.count_images(sizes)
    assert counts.patches.tolist() == expected
    assert (counts.tokens * 4).tolist() == expected
    assert family.count_images([(0, 9), (3, 2000), (-1, -1)]).tokens.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("glm4v", {}),
        ("glm4v", {"fps": 1, "max_duration": 20}),
        ("glm4v", {"fps": 0.7, "max_duration": 9}),
        ("glm46v", {}),
        ("glm46v", {"temporal_patch_size": 4}),
    ],
)
def test_frames_equal_the_real_processors(name: str, settings: dict[str, Any]) -> None:
    real = theirs(name, "VideoProcessor")(**settings)
    family = vision(name, settings)
    compared = refused = 0
    totals = [*range(1, 60), 299, 300, 301, 640, 2000, 3001, 9000, 9001, 30_001, 80_000]
    for total in totals:
        for fps in (0.4, 0.99, 1.0, 2.0, 2.01, 6.0, 6.1, 10.0, 23.976, 30000 / 1001, 60.0):
            metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
            expected = real.sample_frames(metadata, fps=real.fps).tolist()
            video = MediaInfo(90, 160, num_frames=total, fps=fps)
            if expected:
                assert family.sample_frames(video).tolist() == expected, (total, fps)
                compared += 1
            else:
                assert family.count_videos([video]).errors[0].reason == "too_few_frames"
                refused += 1
    assert compared > 600
    assert refused == 0 or name == "glm46v"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("fps", [None, 29.97, 0.3])
@pytest.mark.parametrize("frames", [(0, 1, 2, 5), (0, 7, 100, 4000, 5000), tuple(range(16))])
def test_a_video_is_written_as_the_processor_writes_it(
    name: str, step: int, fps: float | None, frames: tuple[int, ...]
) -> None:
    video = MediaInfo(60, 90, num_frames=6000, fps=fps, frame_indices=frames)
    counts = vision(name, {"temporal_patch_size": step}).count_videos([video])
    expansion = (counts.expansions or [])[0]
    assert expansion is not None
    grid = counts.grids[0]
    real = theirs(name, "VideoProcessor")(temporal_patch_size=step)
    assert counts.patches[0] == real.get_num_of_video_patches(len(frames), 60, 90)
    writer = theirs(name, "Processor").__new__(theirs(name, "Processor"))
    writer.image_token, writer.video_processor = "<|image|>", real
    metadata = VideoMetadata(total_num_frames=6000, fps=fps, frames_indices=list(frames))
    expected = writer.replace_video_token(
        {"video_grid_thw": [torch.from_numpy(grid)], "video_metadata": [metadata]}, 0
    )
    assert set(expansion.runs) == {int(grid[1] * grid[2]) // 4}
    assert expansion.text.replace("<|image|>", "<|image|>" * expansion.runs[0]) == expected


@pytest.mark.parametrize(
    ("video", "reason"),
    [
        (MediaInfo(60, 60, num_frames=1, fps=9.0, extracted=True), "too_few_frames"),
        (MediaInfo(60, 60, num_frames=30, fps=None), "unknown_fps"),
        (MediaInfo(60, 60, num_frames=30, fps=0.0), "unknown_fps"),
        (MediaInfo(60, 60, num_frames=30, fps=1e-300), "unknown_fps"),
        (MediaInfo(60, 60, num_frames=30, fps=float("nan"), extracted=True), "unknown_fps"),
        (MediaInfo(60, 60, num_frames=30, fps=float("inf")), "unknown_fps"),
        (MediaInfo(60, 60, num_frames=10**12, fps=9.0), "media_too_large"),
        (MediaInfo(60, 60, 2, frame_indices=(0, 10**12), extracted=True), "media_too_large"),
        (MediaInfo(3, 2000, num_frames=30, fps=9.0), "aspect_ratio"),
        (MediaInfo(0, 2000, num_frames=30, fps=9.0), "broken_media"),
        (MediaInfo(9, 2000, num_frames=0, fps=9.0), "broken_media"),
        (MediaInfo(9, 20, num_frames=5, fps=9.0, frame_indices=(4, 5)), "broken_media"),
    ],
)
def test_videos_that_cannot_be_used(video: MediaInfo, reason: str) -> None:
    good = MediaInfo(60, 60, num_frames=30, fps=9.0)
    for name in FAMILIES:
        counts = vision(name).count_videos([good, video])
        assert {number: error.reason for number, error in counts.errors.items()} == {1: reason}
        assert counts.tokens[0] > 0 and counts.tokens[1] == 0
        assert (counts.expansions or [])[1] is None


def test_frames_are_all_taken_without_sampling() -> None:
    family = vision("glm46v", {"do_sample_frames": False})
    assert family.sample_frames(MediaInfo(60, 60, num_frames=7)).tolist() == list(range(7))
    assert family.count_videos([MediaInfo(60, 60, num_frames=7)]).grids[0, 0] == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_positions_are_the_models(name: str) -> None:
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "depth": 1}
    tiny |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_heads": 2}
    config = getattr(transformers, NAMES[name] + "Config")(text_config=tiny, vision_config=tiny)
    with torch.device("meta"):
        model = getattr(transformers, NAMES[name] + "Model")(config)
    rng = np.random.default_rng(6)
    for _ in range(40):
        kinds = rng.integers(1, 3, rng.integers(0, 4))  # 1 an image, 2 a video
        grids = rng.integers(1, 9, (len(kinds), 3)) * [1, 2, 2]
        grids[kinds == 1, 0] = 1
        types: list[int] = []
        starts: list[list[int]] = []
        for kind, grid in zip(kinds.tolist(), grids.tolist(), strict=True):
            starts.append([])
            for _ in range(grid[0]):
                types += [0] * int(rng.integers(1, 9))
                starts[-1].append(len(types))
                types += [kind] * (grid[1] * grid[2] // 4)
        types += [0] * int(rng.integers(1, 9))
        expected, _ = model.get_rope_index(
            torch.zeros(1, len(types), dtype=torch.long),
            torch.tensor([types]),
            image_grid_thw=torch.from_numpy(grids[kinds == 1]),
            video_grid_thw=torch.from_numpy(grids[kinds == 2]),
        )
        assert vision(name).merge_size == 2
        ours = mrope_positions(len(types), starts, grids.tolist(), 2)
        assert (ours == expected[:, 0].numpy()).all()
