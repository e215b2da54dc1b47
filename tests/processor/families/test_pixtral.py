"""Pixtral and Mistral 3 count as transformers' processor does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import family_processors_tiles as tiles
import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

from packidx.processor.families import FAMILIES
from packidx.records.conversation import MediaInfo

FAMILY = FAMILIES["PixtralProcessor"]
MODELS = {"pixtral": (1024, 1), "mistral3": (1540, 2)}


@pytest.mark.parametrize("name", list(MODELS))
def test_sizes(tmp_path: Path, name: str) -> None:
    processor = tiles.pixtral(tmp_path, *MODELS[name])
    vision: Any = tiles.saved(processor, tmp_path / name).vision
    edge, merge = MODELS[name]
    factor = processor.patch_size * merge
    rng = np.random.default_rng(edge)
    near = np.array([n * factor + off for n in (1, 2, 30, edge // factor) for off in (-1, 0, 1)])
    sizes = np.concatenate(
        [
            rng.integers(1, 3000, (2000, 2)),
            rng.integers(1, 2 * edge, (500, 1)) * rng.integers(1, 3, (500, 2)),
            np.stack(np.meshgrid(near, near), axis=-1).reshape(-1, 2),
            np.array([(edge, edge), (edge + 1, 1), (1, edge), (3 * edge, edge), (edge * 2, 777)]),
        ]
    )
    sizes = sizes[sizes.max(axis=1) / edge <= sizes.min(axis=1)]  # else no pixel is left
    expected = [
        get_resize_output_image_size(torch.empty(3, *size, device="meta"), edge, factor)
        for size in sizes.tolist()
    ]
    counts = vision.count_images(sizes)
    rows, columns = counts.grids[:, 1] // merge, counts.grids[:, 2] // merge
    found = np.stack([rows, columns], axis=1) * factor
    assert found.tolist() == [list(size) for size in expected]
    assert counts.tokens.tolist() == (rows * columns).tolist()
    assert not counts.errors and len(sizes) > 2000
    for number in range(0, len(sizes), 50):
        expansion = counts.expansions[number]
        inputs = {"image_sizes": [counts.grids[number, 1:] * processor.patch_size]}
        written = "".join(
            "[IMG]" * run + mark
            for run, mark in zip(expansion.runs, expansion.text.split("[IMG]")[1:], strict=True)
        )
        assert written == processor.replace_image_token(inputs, 0)


def test_the_image_processor_is_given_the_merged_patch_size(tmp_path: Path) -> None:
    """Alone, without `image_options`, it would make another size."""
    processor = tiles.pixtral(tmp_path, *MODELS["mistral3"])
    vision: Any = tiles.saved(processor, tmp_path / "merged").vision
    picture = Image.new("RGB", (200, 45))
    sizes = [
        np.array(processor.image_processor([picture], **kwargs)["image_sizes"]).tolist()
        for kwargs in (vision.image_options, {})
    ]
    assert (vision.count_images([(45, 200)]).grids[:, 1:] * 14).tolist() == sizes[0] != sizes[1]


def test_what_cannot_be_counted(tmp_path: Path) -> None:
    processor = tiles.pixtral(tmp_path, *MODELS["mistral3"])
    files = tiles.saved(processor, tmp_path / "broken")
    assert files.vision is not None
    counts = files.vision.count_images([(0, 5), (1, 4000), (5, 5)])
    reasons = {number: error.reason for number, error in counts.errors.items()}
    assert reasons == {0: "broken_media", 1: "aspect_ratio"}
    assert counts.tokens.tolist() == [0, 0, 1] and not counts.grids[:2].any()
    with pytest.raises((RuntimeError, ValueError, ZeroDivisionError)):
        processor.image_processor([Image.new("RGB", (4000, 1))], patch_size=28)
    assert (
        files.vision.expand("video", [MediaInfo(5, 5, 5)]).errors[0].reason == "unsupported_media"
    )


def test_own_defaults_are_the_class(tmp_path: Path) -> None:
    processor = tiles.pixtral(tmp_path)
    assert {name: vars(processor)[name] for name in FAMILY.own_defaults} == FAMILY.own_defaults
