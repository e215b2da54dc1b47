"""InternVL: counts equal the real processor's."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import family_talks
import numpy as np
import pytest
import torchvision_cpu  # noqa: F401, it must come before transformers
import transformers
from family_processors import family_processor

from packidx.processor.families.base import FamilyMedia
from packidx.processor.families.internvl import INTERNVL, count_tiles
from packidx.records.conversation import MediaInfo

SIZES = [(1, 1), (3, 2000), (2000, 3), (28, 28), (448, 448), (450, 890), (1600, 900)]
PATCHES = 32 * 32
"""Of a tile."""


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return family_processor("internvl", tmp_path_factory.mktemp("internvl"))


def vision(video: dict[str, Any] | None = None, **image: Any) -> FamilyMedia:
    image.setdefault("size", {"height": 448, "width": 448})
    settings = INTERNVL.complete(image, INTERNVL.image_defaults)
    videos = INTERNVL.complete(video or {}, INTERNVL.video_defaults)
    return INTERNVL.build(settings, videos, {"image_seq_length": 256})


def patches(real: Any, side: int) -> int:
    return len(real["pixel_values"]) * side**2 if "pixel_values" in real else 0


def test_lengths_patches_and_places_equal_the_real_processors(
    internvl: tuple[Any, Path], tmp_path: Path
) -> None:
    rng = random.Random(1)
    none = {"ids": 0, "patches": 0, "media": 0}
    talks = [family_talks.conversation(rng, SIZES, share=0.3) for _ in range(30)]
    talks += [family_talks.conversation(rng, (), [1, 2, 5], share=0.1) for _ in range(20)]
    processor, folder = internvl
    rows = partial(patches, side=32)  # 448 pixels a side, 14 a patch
    assert family_talks.compare("internvl", folder, processor, talks, rows) == none

    talks = [family_talks.conversation(rng, SIZES) for _ in range(200)]
    talks += [family_talks.conversation(rng, SIZES, [1, 2, 5, 30]) for _ in range(100)]
    processor, folder = family_processor("internvl-small", tmp_path)
    rows = partial(patches, side=4)
    assert family_talks.compare("internvl", folder, processor, talks, rows) == none


def test_pixels_of_images_and_videos_are_one_tensor_in_order(internvl: tuple[Any, Path]) -> None:
    processor, folder = internvl
    rng = random.Random(3)
    talks = [family_talks.conversation(rng, SIZES[:4], [1, 2, 5]) for _ in range(20)]
    mixed = [len({medium.kind for medium in talk.media}) for talk in talks].count(2)
    assert mixed > 3
    assert family_talks.encoder_differences(folder, processor, talks, ["pixel_values"]) == 0


@pytest.mark.parametrize("limits", [(1, 12), (1, 6), (2, 9), (1, 1), (4, 40)])
def test_tiles_equal_the_real_processors(limits: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.uniform(0, np.log(9000), (4000, 2))).astype(np.int64)
    # Equal aspect ratios, where the number of pixels decides.
    sides = rng.integers(1, 8, (2000, 2)) * rng.integers(1, 1200, (2000, 1))
    sizes = np.concatenate([sizes, sides])
    real = transformers.GotOcr2ImageProcessor(
        size={"height": 448, "width": 448},
        crop_to_patches=True,
        min_patches=limits[0],
        max_patches=limits[1],
    )
    expected = [real.get_number_of_image_patches(h, w) for h, w in sizes.tolist()]
    assert count_tiles(*sizes.T, 448, 448, *limits).tolist() == expected
    assert vision(min_patches=limits[0], max_patches=limits[1]).count_images(
        sizes
    ).patches.tolist() == [tiles * PATCHES for tiles in expected]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_frames": 8},
        {"num_frames": 7, "initial_shift": False},
        {"num_frames": 5, "initial_shift": 1.5},
        {"fps": 1},
        {"fps": 0.7},
    ],
)
def test_frames_equal_the_real_processors(settings: dict[str, Any]) -> None:
    real = transformers.InternVLVideoProcessor(**settings, do_sample_frames=True)
    family = vision({**settings, "do_sample_frames": True})
    compared = refused = 0
    for total in [*range(1, 130), 300, 1800, 20_000]:
        for fps in (1.0, 10.0, 23.976, 30000 / 1001):
            video = MediaInfo(90, 160, num_frames=total, fps=fps)
            metadata = transformers.video_utils.VideoMetadata(total_num_frames=total, fps=fps)
            try:
                expected = real.sample_frames(metadata, **settings).tolist()
            except (ValueError, ZeroDivisionError, RuntimeError):
                error = family.count_videos([video]).errors[0]
                assert error.reason == "too_few_frames"
                refused += 1
                continue
            assert family.sample_frames(video).tolist() == expected
            assert family.count_videos([video]).grids[0].tolist() == [len(expected), 32, 32]
            compared += 1
    assert compared > 400 and refused > 0


def test_frames_that_the_record_names_are_taken_as_they_are() -> None:
    family = vision({"num_frames": 4, "do_sample_frames": True})
    named = MediaInfo(40, 40, num_frames=100, fps=25.0, frame_indices=(3, 5, 90))
    assert family.sample_frames(named).tolist() == [3, 5, 90]
    extracted = MediaInfo(40, 40, num_frames=9, extracted=True)
    assert family.sample_frames(extracted).tolist() == list(range(9))
    beyond = MediaInfo(40, 40, num_frames=9, frame_indices=(9,))
    assert family.count_videos([beyond, extracted]).errors[0].reason == "broken_media"
