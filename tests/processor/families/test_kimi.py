"""Kimi-K2.5: counts equal the real processor's."""

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
from transformers.vision_utils import get_vision_cu_seqlens

from packidx.encode.loading import files_of
from packidx.errors import SourceError
from packidx.processor.families.kimi import KIMI_K25, VIDEO, KimiVision
from packidx.processor.folder import load_processor
from packidx.records.conversation import MediaInfo

SIZES = [(1, 1), (3, 900), (2000, 3), (28, 28), (29, 57), (300, 420), (333, 97), (8000, 20)]


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return family_processor("kimi_k25", tmp_path_factory.mktemp("kimi"))


def vision(video: dict[str, Any] | None = None, **image: Any) -> KimiVision:
    settings = KIMI_K25.complete(image, KIMI_K25.image_defaults)
    videos = KIMI_K25.complete(video or {}, KIMI_K25.video_defaults)
    family = KIMI_K25.build(settings, videos, {})
    assert isinstance(family, KimiVision)
    return family


def patches(real: Any) -> int:
    return sum(len(real[key]) for key in ("pixel_values", "pixel_values_videos") if key in real)


def test_lengths_patches_and_places_equal_the_real_processors(kimi: tuple[Any, Path]) -> None:
    processor, folder = kimi
    rng = random.Random(1)
    talks = [family_talks.conversation(rng, SIZES) for _ in range(200)]
    talks += [family_talks.conversation(rng, SIZES, [1, 3, 9, 30, 47]) for _ in range(120)]
    found = family_talks.compare("kimi_k25", folder, processor, talks, patches)
    assert found == {"lengths": 0, "patches": 0, "media": 0}


def test_tensors_equal_the_real_processors(kimi: tuple[Any, Path]) -> None:
    processor, folder = kimi
    rng = random.Random(2)
    talks = [family_talks.conversation(rng, SIZES, [1, 3, 9]) for _ in range(40)]
    names = ["pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"]
    assert family_talks.encoder_differences(folder, processor, talks, names) == 0


def test_a_folder_and_its_object_have_one_fingerprint(kimi: tuple[Any, Path]) -> None:
    processor, folder = kimi
    assert files_of(processor).fingerprint() == load_processor(folder).fingerprint()


def test_defaults_are_the_classes() -> None:
    image, video = transformers.Kimi_K25ImageProcessor, transformers.Kimi_K25VideoProcessor
    assert not family_talks.default_differences(KIMI_K25, image, video)


@pytest.mark.parametrize(
    "settings", [{}, {"max_patches": 100}, {"size": {"max_height": 7, "max_width": 7}}]
)
def test_sizes_equal_the_real_processors(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.uniform(0, np.log(20_000), (20_000, 2))).astype(np.int64)
    sizes = np.concatenate(
        [sizes, rng.integers(1, 60, (5_000, 2)), 14 * rng.integers(1, 99, (5_000, 2))]
    )
    family = vision(settings, **settings)
    real = transformers.Kimi_K25ImageProcessor(**settings)
    expected = [real.get_number_of_image_patches(h, w) for h, w in sizes.tolist()]
    counts = family.count_images(sizes)
    assert counts.patches.tolist() == expected
    assert (counts.tokens * 4).tolist() == expected
    film = transformers.Kimi_K25VideoProcessor(**settings)
    for height, width in sizes[:500].tolist():
        video = MediaInfo(height, width, num_frames=6, extracted=True)
        counts = family.count_videos([video])
        assert counts.patches[0] == film.get_num_of_video_patches(6, height, width)


def test_an_image_without_pixels_has_no_token() -> None:
    counts = vision().count_images([(0, 5), (5, -1), (5, 5)])
    assert counts.tokens.tolist() == [0, 0, 1]


@pytest.mark.parametrize("settings", [{}, {"fps": 1}, {"fps": 0.3, "temporal_patch_size": 2}])
def test_frames_equal_the_real_processors(settings: dict[str, Any]) -> None:
    real = transformers.Kimi_K25VideoProcessor(**settings)
    family = vision(settings)
    compared = refused = 0
    for total in [*range(1, 60), 299, 300, 301, 3001, 30_001]:
        for fps in (0.4, 1.0, 2.0, 5.5, 23.976, 30000 / 1001, 60.0):
            video = MediaInfo(90, 160, num_frames=total, fps=fps)
            metadata = VideoMetadata(total_num_frames=total, fps=fps)
            try:
                expected = real.sample_frames(metadata, fps=real.fps).tolist()
            except ValueError:
                assert family.count_videos([video]).errors[0].reason == "too_few_frames"
                refused += 1
                continue
            assert family.sample_frames(video).tolist() == expected
            compared += 1
    assert compared > 300
    assert refused > 0 or real.fps < 0.4


def test_a_video_is_written_as_the_processor_writes_it(kimi: tuple[Any, Path]) -> None:
    processor, _ = kimi
    for fps in (None, 29.97, 0.01, 30000 / 1001):
        for frames in [(0,), (0, 7, 100, 4000, 5000), tuple(range(8)), tuple(range(7, 900, 13))]:
            video = MediaInfo(60, 90, num_frames=6000, fps=fps, frame_indices=frames)
            counts = vision().count_videos([video])
            expansion = (counts.expansions or [])[0]
            assert expansion is not None
            chunks = -(-len(frames) // 4)
            metadata = VideoMetadata(total_num_frames=6000, fps=fps, frames_indices=list(frames))
            inputs = {
                "num_chunks_per_video": [chunks],
                "video_grid_thw": torch.from_numpy(counts.grids).expand(chunks, 3),
                "video_metadata": [metadata],
            }
            expected = processor.replace_video_token(inputs, 0)
            assert expansion.runs == (expansion.runs[0],) * chunks
            assert expansion.text.replace(VIDEO, VIDEO * expansion.runs[0]) == expected


@pytest.mark.parametrize("num_frames", [1, 3, 4, 5, 8, 11])
def test_cost_is_that_of_the_models_attention_spans(
    num_frames: int, kimi: tuple[Any, Path]
) -> None:
    processor, _ = kimi
    frames = np.zeros((num_frames, 40, 60, 3), np.uint8)
    real = processor.video_processor(frames, do_sample_frames=False, return_tensors="pt")
    borders = get_vision_cu_seqlens(real["video_grid_thw"], merge_temporal=True)
    video = MediaInfo(40, 60, num_frames=num_frames, extracted=True)
    counts = vision().count_videos([video])
    assert counts.cost.tolist() == [int((borders.diff() ** 2).sum())]
    assert counts.patches.tolist() == [len(real["pixel_values_videos"])]


@pytest.mark.parametrize(
    ("image", "video", "message"),
    [
        ({"size": {"max_height": 448, "max_width": 512}}, {}, "image processor must resize"),
        ({"do_resize": False}, {}, "do_resize False"),
        ({}, {"size": {"height": 448, "width": 448}}, "video processor must resize"),
        ({}, {"num_frames": 8}, "num_frames 8 and fps 2"),
    ],
)
def test_settings_that_are_not_understood_are_refused(
    image: dict[str, Any], video: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        vision(video, **image)
