"""Tensors of several samples joined: by which rule, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_packs import make_index, record
from torch_packs import SyntheticEncode, pack

from packidx.errors import MismatchError
from packidx.index import Index
from packidx.torch import Pack, PackedDataset, collate
from packidx.torch.joining import join_media

TEXTS = [record(seed, [5 + seed]) for seed in range(6)]
IMAGES = [record(100 + n, [3, (4, 2 + 2 * n), 4, (2, 2), 2 + n]) for n in range(4)]


class Own(SyntheticEncode):
    """Adds tensors of its own to each sample with images.

    Args:
        make: (number of patches, number of tokens) → the tensors.
    """

    def __init__(self, make: Any, join: Any = None) -> None:
        super().__init__()
        self.make = make
        if join is not None:
            self.join = join

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        sample = super().__call__(record)
        if "pixel_values" in sample:
            sample |= self.make(len(sample["pixel_values"]), len(sample["input_ids"]))
        return sample


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"text": TEXTS, "image": IMAGES}, capacity=64)


# -- rules that are known by name ------------------------------------------------------------------


def test_indices_of_patches_go_on_through_samples_and_packs() -> None:
    """Molmo 2: of the patches of all crops; -1 is none."""

    def sample(crops: int, patches: int, index: list[list[int]]) -> dict[str, torch.Tensor]:
        pooling = torch.tensor(index, dtype=torch.int32)
        return {"pixel_values": torch.rand(crops, patches, 3), "image_token_pooling": pooling}

    parts = [sample(2, 5, [[0, 9]]), sample(1, 5, [[0, -1], [4, 3]]), sample(3, 5, [[14, 0]])]
    joined = join_media(parts)["image_token_pooling"]
    assert joined.tolist() == [[0, 9], [10, -1], [14, 13], [29, 15]]
    assert joined.dtype == torch.int32
    in_packs = join_media([join_media(parts[:1]), join_media(parts[1:])])
    assert in_packs["image_token_pooling"].tolist() == joined.tolist()
    pooled = [part["pixel_values"].flatten(0, 1)[part["image_token_pooling"][-1]] for part in parts]
    whole = join_media(parts)["pixel_values"].flatten(0, 1)
    for row, values in zip((0, 2, 3), pooled, strict=True):
        assert torch.equal(whole[joined[row]], values)


def test_an_index_without_what_it_counts_is_refused() -> None:
    with pytest.raises(MismatchError, match="rows of pixel_values, without pixel_values"):
        join_media([{"image_token_pooling": torch.tensor([[0]])}])


def test_patches_side_by_side_are_joined_side_by_side() -> None:
    """MiniCPM-V reads the first row of them alone."""
    parts = [
        {"pixel_values": torch.rand(1, 3, 14, 14 * n), "target_sizes": torch.tensor([[1, n]])}
        for n in (4, 6)
    ]
    joined = join_media(parts)
    assert joined["pixel_values"].shape == (1, 3, 14, 140)
    assert torch.equal(joined["pixel_values"][..., 56:], parts[1]["pixel_values"])
    assert joined["target_sizes"].tolist() == [[1, 4], [1, 6]]
    parts[1]["pixel_values"] = torch.rand(1, 3, 16, 28)
    with pytest.raises(MismatchError, match="pixel_values with different shapes"):
        join_media(parts)


def test_a_model_that_takes_lists_gets_lists() -> None:
    """UnlimitedOCR splits its tiles by them."""

    def tiled(tiles: list[int]) -> Pack:
        grids = torch.tensor([[1, n] for n in tiles])
        return pack([4], num_local_patches=torch.tensor(tiles), patches_grid=grids)

    batch = collate([tiled([2, 3]), tiled([4])])
    assert batch["num_local_patches"] == [2, 3, 4]
    assert batch["patches_grid"] == [[1, 2], [1, 3], [1, 4]]
    alone = tiled([2])
    del alone.samples[0]["patches_grid"]
    assert torch.equal(collate(alone)["num_local_patches"], torch.tensor([2]))


# -- names that nobody knows -----------------------------------------------------------------------


def numbers(patches: int, tokens: int) -> dict[str, Any]:
    return {"first_patches": torch.tensor([0, patches - 1, -1])}


def test_unknown_whole_numbers_are_refused_by_name(index: Index) -> None:
    dataset = PackedDataset(index, Own(numbers))
    with pytest.raises(MismatchError, match=r"first_patches \[3\].*join = \{'first_patches': RULE"):
        [dataset[k] for k in range(len(dataset))]
    read = PackedDataset(index, SyntheticEncode())[0]
    read.samples[0]["own"] = torch.tensor([1])
    with pytest.raises(MismatchError, match="encode returned own"):
        collate([read])


def test_the_encoder_says_how_its_own_are_joined(index: Index) -> None:
    def make(patches: int, tokens: int) -> dict[str, Any]:
        return {
            **numbers(patches, tokens),
            "areas": torch.full((1, patches), patches),
            "scores": torch.full((2,), patches),
            "kinds": torch.full((tokens,), 3),
        }

    rules = {"areas": "last", "scores": "rows", "kinds": "tokens"}
    rules["first_patches"] = "index:pixel_values"
    dataset = PackedDataset(index, Own(make, rules))
    packs = list(dataset)
    batch = collate(packs)
    patches = len(batch["pixel_values"])
    assert batch["areas"].shape == (1, patches)
    ends = batch["first_patches"].view(-1, 3)
    assert ends[:, 2].eq(-1).all() and len(ends) == len(IMAGES) > 2
    assert ends[1:, 0].tolist() == (ends[:-1, 1] + 1).tolist() and int(ends[-1, 1]) == patches - 1
    assert len(batch["scores"]) == 2 * len(IMAGES)
    assert batch["kinds"].shape == batch["input_ids"].shape
    for row, each in enumerate(packs):
        kinds = each.joined()["kinds"]
        assert torch.equal(batch["kinds"][row, : len(kinds)], kinds)
    # What has none is filled with 0: text samples, and what pads a row.
    assert set(batch["kinds"].unique().tolist()) == {0, 3}
