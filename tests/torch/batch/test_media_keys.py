"""Keys about media that some trainers and models take: numbers per row, flags of tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_packs import make_index, record
from torch_packs import IMAGE, Failing, SyntheticEncode, pack

from packidx.errors import BadRecord, MismatchError, OptionError
from packidx.torch import PackedDataset, collate

RECORDS = [
    record(0, [5, (4, 4), 3]),
    record(1, [60, (4, 8), 70, (4, 4), 9]),  # long: cut, its images in other pieces
    record(2, [7]),
    record(3, [(4, 6), (4, 4), 2]),
    record(4, [30]),
]
COUNTS = ("num_images", "num_videos")


@pytest.mark.parametrize("options", [{}, {"on_long": "split"}, {"on_long": "truncate"}])
@pytest.mark.parametrize("knows_media", [True, False])
def test_packs_have_the_plans_numbers(
    tmp_path: Path, options: dict[str, Any], knows_media: bool
) -> None:
    records = [{**each, "unknown": not knows_media} for each in RECORDS]
    if not knows_media:
        options = {"on_long": "drop"}  # what is cut must be known
    index = make_index(tmp_path, {"all": records}, capacity=50, **options)
    dataset = PackedDataset(index, SyntheticEncode())
    total = 0
    for k in range(len(dataset)):
        read, stats = dataset[k], index.stats(k)
        assert [read[name] for name in COUNTS] == [stats[name] for name in COUNTS]
        assert read["num_images"] == len(read.get("image_grid_thw", ()))
        total += read["num_images"]
    assert total == (5 if options.get("on_long") == "split" else 3)
    packs = [dataset[k] for k in range(len(dataset))]
    batch = collate(packs, extra=COUNTS)
    assert batch["num_images"].tolist() == [read["num_images"] for read in packs]
    assert batch["num_videos"].tolist() == [0] * len(packs)
    assert batch["num_images"].dtype == torch.int64
    in_one_row = collate(packs, "flash", extra=("num_images",))
    assert in_one_row["num_images"].tolist() == [total] and "num_videos" not in in_one_row


def test_the_numbers_are_asked_for(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"all": RECORDS[:1]}, capacity=64)
    read = PackedDataset(index, SyntheticEncode())[0]
    for attention in ("sdpa", "flash", "flex", "indexed", "thd"):
        assert not collate(read, attention).keys() & {*COUNTS, "image_flags", "has_dummy"}
    for wrong in ("num_images", ("num_image",), ("image_flags", "pixel_values")):
        with pytest.raises(OptionError, match="give a tuple of some of image_flags, num_images"):
            collate(read, extra=wrong)
    with pytest.raises(MismatchError, match="num_videos, and neither the plan nor the tensors"):
        collate({key: read[key] for key in read if key != "num_videos"}, extra=COUNTS)


def test_the_dummy_image_counts_for_nothing_but_its_pixels(tmp_path: Path) -> None:
    records = [each for each in RECORDS if each["seed"] != 1]
    texts = [each for each in records if len(each["parts"]) == 1]
    groups = {"images": [each for each in records if each not in texts], "texts": texts}
    index = make_index(tmp_path, groups, capacity=64, reserve=16, group_by="source")
    bad = BadRecord("broken_media", "an image cannot be decoded")
    failing = Failing({str(each["id"]) for each in groups["images"]}, bad)
    for encode in (SyntheticEncode(), failing):  # also where no image could be read
        dataset = PackedDataset(index, encode, on_error="skip", dummy_image=RECORDS[0])
        for k in range(len(dataset)):
            read, stats = dataset[k], index.stats(k)
            number = 0 if read.get("events") else stats["num_images"]
            assert read["num_images"] == number and ("has_dummy" in read) == (not number)
            assert len(read["image_grid_thw"]) == number + (not number)
            for attention in ("indexed", "thd"):
                wanted = [len(read["image_grid_thw"])]  # NeMo deals the dummy's pixels, too
                assert collate(read, attention)["n_images_per_sample"].tolist() == wanted


def with_media(images: int, videos: int) -> dict[str, Any]:
    tensors: dict[str, Any] = {"num_images": images, "num_videos": videos}
    if images:
        tensors["image_grid_thw"] = torch.tensor([[1, 2, 2]] * images)
        tensors["pixel_values"] = torch.ones(4 * images, 6)
    if videos:
        tensors["video_grid_thw"] = torch.tensor([[2, 2, 2]] * videos)
        tensors["pixel_values_videos"] = torch.ones(8 * videos, 6)
    return pack([3, 4], **tensors)


@pytest.mark.parametrize(
    ("packs", "images", "videos"),
    [
        ([(3, 1), (0, 0), (1, 2)], [3, 0, 1], [1, 0, 2]),
        ([(0, 2), (0, 1)], None, [2, 1]),  # nothing but videos
        ([(2, 0)], [2], None),
        ([(0, 0), (0, 0)], None, None),
    ],
)
def test_numbers_of_media_for_nemo(
    packs: list[tuple[int, int]], images: list[int] | None, videos: list[int] | None
) -> None:
    given = [with_media(*counts) for counts in packs]
    indexed, thd = collate(given, "indexed"), collate(given, "thd")
    for name, counts in (("n_images_per_sample", images), ("n_videos_per_sample", videos)):
        if counts is None:
            assert name not in indexed and name not in thd
            continue
        assert indexed[name].tolist() == counts and indexed[name].dtype == torch.int64
        assert thd[name].tolist() == [sum(counts)]  # thd has one row of tokens
    assert not collate(given).keys() & {"n_images_per_sample", "n_videos_per_sample"}


def test_models_without_grids_are_counted_in_images() -> None:
    tiles = {"pixel_values": torch.ones(5, 3, 4, 4)}
    packs = [pack([3], num_images=2, num_videos=0, **tiles), pack([2], num_images=0, num_videos=0)]
    assert collate(packs, "indexed")["n_images_per_sample"].tolist() == [2, 0]
    unknown = pack([3], **tiles)
    assert "n_images_per_sample" not in collate([unknown, packs[0]], "indexed")


class Tiles:
    """OpenGVLab's InternVL in small: two tokens for each tile, tiles of one shape."""

    def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
        ids, tiles = [], 0
        for part in asked.get("parts") or [(2, 2)]:
            if isinstance(part, int):
                ids += [5] * part
            else:
                count = part[0] * part[1] // 4
                ids += [6, *[IMAGE] * count, 7]
                tiles += count // 2 or 1
        encoded: dict[str, Any] = {"input_ids": torch.tensor(ids)}
        if tiles:
            encoded["pixel_values"] = torch.full((tiles, 3, 4, 4), float(asked.get("seed", 9)))
        return encoded


def features_find_their_places(batch: dict[str, Any]) -> bool:
    """What OpenGVLab's forward does: features of real tiles take the image tokens' places."""
    flags = batch["image_flags"].squeeze(-1)
    features = torch.ones(len(batch["pixel_values"]), 2)[flags == 1]
    return features.numel() == int((batch["input_ids"] == IMAGE).sum())


def test_flags_of_tiles(tmp_path: Path) -> None:
    texts = [record(10 + n, [40]) for n in range(2)]
    images = [record(20 + n, [3, (4, 4), (4, 4 + 4 * n), 2 + n]) for n in range(3)]
    index = make_index(
        tmp_path, {"t": texts, "i": images}, capacity=64, group_by="source", reserve=16
    )
    dummy = record(30, [2, (4, 4)])
    bad = BadRecord("broken_media", "an image cannot be decoded")

    class Broken(Tiles):
        def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
            if asked.get("seed") == 21:
                raise bad
            return super().__call__(asked)

    dataset = PackedDataset(index, Broken(), on_error="skip", dummy_image=dummy)
    packs = [dataset[k] for k in range(len(dataset))]
    assert {"has_dummy" in each for each in packs} == {True, False}
    assert any(each.get("events") for each in packs)
    for attention in ("sdpa", "flash"):
        batch = collate(packs, attention, pad_token_id=1, extra=("image_flags",))
        flags = batch["image_flags"]
        assert flags.dtype == torch.int64 and flags.shape == (len(batch["pixel_values"]), 1)
        is_dummy = (batch["pixel_values"] == 30).flatten(1).all(1)
        assert torch.equal(flags[:, 0] == 0, is_dummy) and is_dummy.any()
        assert features_find_their_places(batch)
    for each in packs:
        assert features_find_their_places(collate(each, extra=("image_flags",)))
        start = int(each["cu_seqlens"][len(each["sample_ids"])])
        if "has_dummy" in each:
            assert each["input_ids"][start:].eq(IMAGE).any()  # the pack itself is left alone
    plain = collate(packs)
    assert "image_flags" not in plain
    assert int((plain["input_ids"] == IMAGE).sum()) == 2 * len(plain["pixel_values"])


def test_flags_where_they_cannot_be() -> None:
    with pytest.raises(MismatchError, match=r"pixel_values are \[4, 6\], not \[tiles, "):
        collate(with_media(1, 0), extra=("image_flags",))
    tiles = torch.ones(2, 3, 4, 4)
    own = pack([3], pixel_values=tiles, image_flags=torch.ones(2, 1, dtype=torch.long))
    with pytest.raises(MismatchError, match="which encode returns: ask for it in one place"):
        collate(own, extra=("image_flags",))
    assert collate([own, own])["image_flags"].shape == (4, 1)
    assert "image_flags" not in collate(pack([3]), extra=("image_flags",))
