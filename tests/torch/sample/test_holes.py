"""Holes: what stands for a sample that cannot be read has the shapes of a healthy read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from PIL import Image
from small_packs import make_index, record
from torch_packs import IMAGE, Failing, SyntheticEncode, shapes

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord, MismatchError
from packidx.index import Index
from packidx.torch import PackedDataset

TEXTS = [record(seed, [5 + seed]) for seed in range(5)]
IMAGES = [record(100 + n, [3, (4, 2 + 2 * n), 4, (2, 2), 2 + n]) for n in range(4)]
BAD = BadRecord("broken_media", "an image cannot be decoded")


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return make_index(tmp_path, {"text": TEXTS, "image": IMAGES}, capacity=64)


@pytest.mark.parametrize("options", [{}, {"rope": None}, {"types": False}])
def test_a_hole_has_the_shapes_of_a_healthy_read(index: Index, options: dict[str, Any]) -> None:
    """Each sample fails in turn, in a reader that has read nothing else before."""
    healthy = PackedDataset(index, SyntheticEncode(**options))
    for k in range(len(healthy)):
        whole, samples = healthy[k], index.pack(k).samples
        bounds = whole["cu_seqlens"].tolist()
        for at, sample in enumerate(samples):
            encode = Failing({str(sample.key)}, BAD, **options)
            dataset = PackedDataset(index, encode, on_error="hole")
            pack = dataset[k]
            assert shapes(pack) == shapes(whole)
            inside = slice(bounds[at], bounds[at + 1])
            outside = torch.ones_like(pack["input_ids"], dtype=torch.bool)
            outside[inside] = False
            for key in ("input_ids", "labels"):
                assert torch.equal(pack[key][outside], whole[key][outside])
            assert pack["labels"][inside].eq(-100).all()
            # As many media tokens as media features, or the model stops.
            wanted = whole["input_ids"][inside].eq(IMAGE).sum()
            assert pack["input_ids"][inside].eq(IMAGE).sum() == wanted
            if "mm_token_type_ids" in whole:
                types = pack["mm_token_type_ids"][inside]
                assert torch.equal(types, pack["input_ids"][inside].eq(IMAGE).long())
            assert pack["position_ids"].reshape(-1, len(outside))[0, inside].tolist() == list(
                range(sample.length)
            )
            if "image_grid_thw" in whole:
                assert torch.equal(pack["image_grid_thw"], whole["image_grid_thw"])
                blank = pack["pixel_values"].eq(0).all(dim=1)
                patches = int(sum(m["t"] * m["h"] * m["w"] for m in sample.media or []))
                assert int(blank.sum()) == patches
                assert torch.equal(pack["pixel_values"][~blank], whole["pixel_values"][~blank])
            (told,) = pack["events"]
            assert list(dataset.events) == [told]
            assert told == {
                "kind": "unreadable",
                "done": "hole",
                "pack": k,
                "position": at,
                "sample_id": sample.sample_id,
                "key": sample.key,
                "source": sample.source,
                "planned": sample.length,
                "found": None,
                "label_tokens": sample.label_tokens,
                "error": "BadRecord: broken_media: an image cannot be decoded",
            }
            assert json.loads(json.dumps(told)) == told


def test_holes_of_cut_shifted_and_padded_samples(tmp_path: Path) -> None:
    long = [record(n, [30, (2, 4), 10, (4, 4), 20]) for n in (7, 8)]
    plans: list[dict[str, Any]] = [
        {"on_long": "split"},
        {"shift": True, "on_long": "split"},
        {"align": 8},
    ]
    for number, options in enumerate(plans):
        folder = tmp_path / str(number)
        folder.mkdir()
        records = IMAGES if "align" in options else long
        index = make_index(folder, {"all": records}, capacity=40, **options)
        healthy = PackedDataset(index, SyntheticEncode())
        for k in range(len(healthy)):
            for sample in index.pack(k).samples:
                encode = Failing({str(sample.key)}, BAD)
                pack = PackedDataset(index, encode, on_error="hole")[k]
                whole = healthy[k]
                assert shapes(pack) == shapes(whole)
                assert pack["input_ids"].eq(IMAGE).sum() == whole["input_ids"].eq(IMAGE).sum()


class WithHole(Failing):
    """An encoder that makes its holes itself."""

    def hole(self, length: int, media: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(set(one) >= {"kind", "t", "h", "w", "at"} for one in media)
        return {"input_ids": [77] * length, "labels": [5] * length}


def test_an_encoder_may_make_the_hole(index: Index) -> None:
    key = str(index.pack(0).samples[0].key)
    pack = PackedDataset(index, WithHole({key}, BAD), on_error="hole")[0]
    length = index.pack(0).samples[0].length
    assert pack["input_ids"][:length].eq(77).all() and pack["labels"][:length].eq(-100).all()

    class Short(WithHole):
        def hole(self, length: int, media: list[dict[str, Any]]) -> dict[str, Any]:
            return {"input_ids": [77]}

    with pytest.raises(MismatchError, match="hole returned 1 tokens, asked for were"):
        PackedDataset(index, Short({key}, BAD), on_error="hole")[0]


def test_where_no_shape_can_be_known_it_says_so(tmp_path: Path) -> None:
    plain = make_index(tmp_path, {"image": IMAGES}, capacity=64)
    encode = Failing({str(one["id"]) for one in IMAGES}, BAD)
    with pytest.raises(MismatchError, match=r"no other sample with a image.*hole\(length, media\)"):
        PackedDataset(plain, encode, on_error="hole")[0]


def test_text_needs_no_media_column(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"text": TEXTS}, capacity=64)
    healthy = PackedDataset(index, SyntheticEncode())[0]
    pack = PackedDataset(index, Failing({"key-1"}, BAD), on_error="hole")[0]
    assert shapes(pack) == shapes(healthy)


# -- two readers of a pack, with the real processor ------------------------------------------------


def data(folder: Path, name: str) -> Path:
    """Records of two shards with text alone, one image and two images."""
    shard = folder / f"{name}.jsonl"
    with open(shard, "w") as file:
        for number in range(6):
            images = []
            for place in range(number % 3):
                images.append(f"{name}-{number}-{place}.png")
                size = (60 + 30 * number, 84 + 56 * place)
                Image.new("RGB", size, (9 * number, 80, 7)).save(folder / images[-1])
            messages = [
                {"role": "user", "content": "<image>" * len(images) + f"What, {number}?"},
                {"role": "assistant", "content": "It is so. " * (number + 1)},
            ]
            one = {"id": f"{name}{number}", "messages": messages, "images": images}
            file.write(json.dumps(one) + "\n")
    return shard


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, processors: Path) -> Path:
    """A folder with data, and an index over them."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "data").mkdir()
    shards = [str(data(folder / "data", name)) for name in "ab"]
    processor = processors / "qwen2.5-vl"
    estimate_lengths(shards, folder / "lengths", processor=processor, workers=1)
    plan_packs(folder / "lengths", folder / "index", capacity=512)
    return folder


@pytest.fixture(scope="module")
def encoder(processors: Path) -> ProcessorEncoder:
    return ProcessorEncoder(str(processors / "qwen2.5-vl"))


@pytest.mark.parametrize("lost", ["image", "shard", "everything"])
def test_one_of_two_readers_fails(
    tmp_path: Path, planned: Path, encoder: ProcessorEncoder, lost: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(planned / "data", other)
    lost_keys = {"image": {"a2"}, "shard": {f"a{n}" for n in range(6)}}
    wanted = lost_keys.get(lost, {f"{shard}{n}" for shard in "ab" for n in range(6)})
    files = {"image": ["a-2-1.png"], "shard": ["a.jsonl"]}
    for path in other.iterdir():
        if lost == "everything" or path.name in files[lost]:
            path.unlink()
    healthy, failing = (
        PackedDataset(
            open_index(planned / "index", {str(planned / "data"): str(place)}),
            encoder,
            on_error="hole",
        )
        for place in (planned / "data", other)
    )
    for k in range(len(healthy)):
        one, two = healthy[k], failing[k]
        assert shapes(one) == shapes(two)
        in_pack = {sample.key for sample in healthy.index.pack(k).samples}
        assert {event["key"] for event in two.get("events", [])} == wanted & in_pack
    assert {event["key"] for event in failing.events} == wanted
    assert failing.events.counts == {"unreadable": len(wanted)}
    assert len(healthy.events) == 0
