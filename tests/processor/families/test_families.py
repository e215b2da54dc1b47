"""Of families whose images become tiles or rows: pixels are the real processor's. Of all families:
settings that their formulas do not cover are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import family_talks
import pytest

from packidx.encode.loading import files_of, load_processor
from packidx.errors import SourceError
from packidx.processor.families import FAMILIES

SQUARE = {"size": {"height": 448, "width": 448}}
NO_SAMPLING = {"video_sampling": None, "fps": None, "num_frames": None}
MAKE: dict[str, Callable[[Path], Any]] = {
    "LlavaProcessor": tiles.llava,
    "LlavaNextProcessor": lambda tmp: tiles.llava_next(tmp, 4),
    "LlavaOnevisionProcessor": lambda tmp: tiles.llava_onevision(tmp, 84),
    "Gemma3Processor": lambda tmp: tiles.gemma3(tmp, 224),
    "PixtralProcessor": lambda tmp: tiles.pixtral(tmp, 1540, 2),
    "Idefics3Processor": lambda tmp: tiles.idefics3(tmp, 56),
    "SmolVLMProcessor": lambda tmp: tiles.smolvlm(tmp, 128),
}
"""Families whose defaults are no settings of a checkpoint."""
GIVEN = {"InternVLProcessor": SQUARE}
REFUSED: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "Qwen2VLProcessor": [
        ("image", {"do_resize": False}, "image settings have do_resize false"),
        ("image", {"size": {"height": 224}}, "image processor's size needs shortest_edge and"),
        ("video", {"do_resize": False}, "video settings have do_resize false"),
        ("video", SQUARE, "video processor's size needs shortest_edge and longest_edge"),
        ("video", {"do_sample_frames": True, "fps": 2, "num_frames": 8}, "by fps 2 and num_fra"),
        ("video", {"do_sample_frames": True, "fps": None, "num_frames": None}, "set one of them"),
    ],
    "Qwen3VLProcessor": [
        ("video", {"do_sample_frames": True, "fps": 2, "num_frames": 8}, "by fps 2 and num_fra"),
        ("video", {"do_sample_frames": True, "fps": None, "num_frames": None}, "set one of them"),
    ],
    "Glm4vProcessor": [
        ("image", {"do_resize": False}, "image settings have do_resize false"),
        ("image", SQUARE, "image processor's size needs shortest_edge"),
        ("video", SQUARE, "video processor's size needs shortest_edge"),
    ],
    "InternVLProcessor": [
        ("image", {"size": {"shortest_edge": 448}}, "height and width"),
        ("image", {"do_resize": False}, "do_resize"),
        ("video", {"do_resize": False}, "do_resize"),
        ("video", {"do_sample_frames": True}, "neither num_frames nor fps"),
        ("own", {"image_seq_length": 200}, "square number, but it is 200"),
    ],
    "LlavaProcessor": [
        ("image", {"do_center_crop": False}, "do_center_crop"),
        ("own", {"patch_size": None}, "patch_size"),
    ],
    "LlavaNextProcessor": [
        ("image", {"do_resize": False}, "do_resize"),
        ("image", {"crop_size": {"height": 9, "width": 9}}, "the same"),
        ("image", {"image_grid_pinpoints": [[84, 85]]}, "whole tiles"),
    ],
    "LlavaOnevisionProcessor": [
        ("image", {"size": {"height": 9, "width": 8}}, "square"),
        ("own", {"num_image_tokens": 37}, "no square"),
        ("own", {"vision_aspect_ratio": "pad"}, "unknown"),
        ("video", {"size": {"height": 9, "width": 9}}, "84 pixels"),
        ("video", {"do_sample_frames": True, "fps": 1, "num_frames": 3}, "leave one out"),
    ],
    "Gemma3Processor": [
        ("image", {"do_resize": False}, "do_resize"),
        ("image", {"size": {"height": 224, "width": 448}}, "square"),
        ("own", {"image_seq_length": 17}, "17 tokens"),
        ("own", {"image_seq_length": 0}, "image_seq_length"),
        ("own", {"images_kwargs": {"do_pan_and_scan": True}}, "pan_and_scan"),
    ],
    "PixtralProcessor": [
        ("image", {"do_resize": False}, "do_resize"),
        ("image", {"do_center_crop": True}, "do_center_crop"),
        ("image", {"size": {"shortest_edge": 9}}, "longest_edge"),
        ("own", {"spatial_merge_size": 0}, "spatial_merge_size"),
    ],
    "SmolVLMProcessor": [
        ("image", {"size": {"height": 9, "width": 9}}, "longest_edge"),
        ("own", {"image_seq_len": 5}, "5 tokens"),
        ("own", {"image_seq_len": None}, "image_seq_len"),
        ("video", {"do_resize": False}, "do_resize"),
        ("video", {"max_image_size": {"longest_edge": 96}}, "128 pixels"),
        ("video", NO_SAMPLING | {"fps": 3}, "set both or none"),
        ("video", NO_SAMPLING | {"do_sample_frames": True}, "do_sample_frames"),
    ],
}


def all_patches(real: Any, side: int = 14) -> int:
    """Of rows of pixels, each of which is an image or a tile."""
    rows = real.get("pixel_values", [])
    return sum(row.shape[-1] // side * (row.shape[-2] // side) for row in rows)


def patches_of_tiles(real: Any) -> int:
    """Rows hold tiles, padded with zeros to the largest number within one call; videos frames."""
    total = 0
    for row in real.get("pixel_values", []):
        used = row.abs().flatten(1).sum(1) > 0
        num = int(used.sum())
        assert used[:num].all()
        total += all_patches({"pixel_values": row[:num]})
    return total + sum(
        all_patches({"pixel_values": video}) for video in real.get("pixel_values_videos", [])
    )


def patches_by_size(real: Any, side: int) -> int:
    sizes = real.get("image_sizes", [])
    return sum(int(height) // side * (int(width) // side) for height, width in sizes)


def patches_of_rows(real: Any, side: int) -> int:
    """Every row of an image is a tile."""
    return real["pixel_values"].shape[1] * side**2 if "pixel_values" in real else 0


WHOLE = {"do_image_splitting": False}
TALKS: dict[str, tuple[str, Callable[[Path], Any], Callable[[Any], int]]] = {
    "llava": ("llava", tiles.llava, all_patches),
    "llava_next": ("llava_next", MAKE["LlavaNextProcessor"], patches_of_tiles),
    "llava_onevision": ("llava_onevision", MAKE["LlavaOnevisionProcessor"], patches_of_tiles),
    "gemma3": ("gemma3", MAKE["Gemma3Processor"], all_patches),
    "pixtral": ("pixtral", tiles.pixtral, partial(patches_by_size, side=16)),
    "mistral3": ("pixtral", MAKE["PixtralProcessor"], partial(patches_by_size, side=14)),
    "idefics3": ("idefics3", MAKE["Idefics3Processor"], partial(patches_of_rows, side=4)),
    "idefics3, whole": (
        "idefics3",
        lambda tmp: tiles.idefics3(tmp, 56, **WHOLE),
        partial(patches_of_rows, side=4),
    ),
    "smolvlm": ("smolvlm", MAKE["SmolVLMProcessor"], partial(patches_of_rows, side=8)),
}
"""The family's name, its processor, and the patches of what it returns."""
SIZES = [(1, 1), (1, 40), (40, 1), (13, 17), (56, 56), (57, 99), (336, 336), (97, 333), (300, 30)]


@pytest.mark.parametrize("name", TALKS)
def test_ids_patches_and_places_equal_the_real_processors(name: str, tmp_path: Path) -> None:
    family, make, patches = TALKS[name]
    processor, folder, rng = make(tmp_path), tmp_path / "saved", random.Random(name)
    tiles.saved(processor, folder)
    frames = [4, 9, 30] if family == "llava_onevision" else []
    talks = [family_talks.conversation(rng, SIZES, frames) for _ in range(300)]
    found = family_talks.compare(family, folder, processor, talks, patches, lists=True)
    assert (found["ids"], found["patches"]) == (0, 0)
    assert found["media"] == 0 or family == "llava_onevision"  # nothing parts its media


@pytest.mark.slow
@pytest.mark.parametrize("make", [*MAKE.values(), tiles.pixtral])
def test_pixels(make: Callable[[Path], Any], tmp_path: Path) -> None:
    processor, folder = make(tmp_path), tmp_path / "saved"
    files = tiles.saved(processor, folder)
    assert files_of(processor).fingerprint() == load_processor(folder).fingerprint()
    assert files.vision is not None
    rng = random.Random(files.family)
    frames = [4, 9] if files.family == "llava_onevision" else []
    talks = [family_talks.conversation(rng, [(97, 333), (40, 60)], frames) for _ in range(20)]
    assert sum(len(talk.media) > 1 for talk in talks) > 5
    names = files.vision.model_inputs
    assert family_talks.encoder_differences(folder, processor, talks, names, lists=True) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_counted(name: str, tmp_path: Path) -> None:
    family: Any = FAMILIES[name]
    settings: dict[str, dict[str, Any]] = {
        "image": {**family.image_defaults, **GIVEN.get(name, {})},
        "video": dict(family.video_defaults),
        "own": dict(family.own_defaults),
    }
    if name in MAKE:
        files = tiles.saved(MAKE[name](tmp_path), tmp_path / "saved")
        settings["image"] = dict(files.image_settings or {})
        settings["video"] = dict(files.video_settings or {})
        settings["own"] = dict(files.own_settings)
    family.build(*settings.values())
    for part, change, message in REFUSED[name]:
        changed = {**settings, part: settings[part] | change}
        with pytest.raises(SourceError, match=message):
            family.build(*changed.values())
