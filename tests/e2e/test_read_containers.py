"""What is counted is what is read: every container and dialect, from files to packs and back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lmdb
import numpy as np
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import decode, write_clip
from PIL import Image
from record_files import tar_of, write

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.records.containers.registry import KINDS
from packidx.torch import PackedDataset

datasets.disable_progress_bars()

CAPACITY = 700
SIZES = [(40, 60), (90, 33), (112, 112)]
HARD = 'He said: "a, [b] {c}" \\ é漢\n\t</s>\r\n'

Record = dict[str, Any]


class Built(NamedTuple):
    """One sample as training sees it."""

    ids: list[int]
    labels: list[int]
    grids: list[list[int]]
    """Of its images and videos, in patches."""
    pixels: float
    """A sum that tells pictures and their order apart."""


Sources = dict[str, dict[str, Built]]
"""Samples by source and key."""


class Remembering(ProcessorEncoder):
    """The encoder, which keeps what it has built."""

    built: list[Mapping[str, torch.Tensor]]

    def __call__(self, record: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        sample = super().__call__(record)
        self.built.append(sample)
        return sample


def read(folder: Path, encoder: Remembering, sources: Mapping[str, str]) -> Sources:
    """From sources to samples by way of lengths and index, checked on the way."""
    named = [f"{name}={path}" for name, path in sources.items()]
    summary = estimate_lengths(named, folder / "l", processor=encoder.files.name, workers=1)
    assert summary.num_rejected == 0, summary.rejected
    assert set(summary.methods) == {"exact"}
    plan_packs(folder / "l", folder / "index", capacity=CAPACITY)
    dataset = PackedDataset(folder / "index", encoder)
    found: Sources = {name: {} for name in sources}
    for number in range(len(dataset)):
        encoder.built = []
        pack = dataset[number].joined()
        samples = dataset.index.pack(number).samples
        bounds = itertools.pairwise(pack["cu_seqlens"].tolist())
        for sample, built, (first, last) in zip(samples, encoder.built, bounds, strict=True):
            labels = pack["labels"][first:last]
            assert last - first == sample.length
            assert int((labels != -100).sum()) == sample.label_tokens
            assert torch.equal(pack["input_ids"][first:last], built["input_ids"])
            found[str(sample.source)][str(sample.key)] = described(built, labels)
    total = sum(len(samples) for samples in found.values())
    assert total == dataset.index.manifest["lengths"]["num_samples"]
    return found


def described(built: Mapping[str, torch.Tensor], labels: torch.Tensor) -> Built:
    grids = [built[key] for key in sorted(built) if key.endswith("grid_thw")]
    pixels = [built[key].double().flatten() for key in sorted(built) if key.startswith("pixel")]
    return Built(
        built["input_ids"].tolist(),
        labels.tolist(),
        [row for grid in grids for row in grid.tolist()],
        sum(float(one @ torch.arange(len(one), dtype=one.dtype)) for one in pixels),
    )


@pytest.fixture(scope="module")
def encoder(processors: Path) -> Remembering:
    return Remembering(str(processors / "qwen2.5-vl"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with images."""
    (tmp_path / "data").mkdir()
    for number, (width, height) in enumerate(SIZES):
        noise = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "data" / f"{number}.png")
    return tmp_path / "data"


def chat(number: int) -> Record:
    """No, one or two images; one or two questions; a system turn or none."""
    images = [f"{(number // 3 + k) % len(SIZES)}.png" for k in range(number % 3)]
    asked = "<image>" * len(images) + f"What, {number}? " + HARD * (number % 4)
    messages = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": f"It is {number}." + HARD * (number % 2)},
    ]
    if number % 4 == 3:
        messages += [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    if number % 5 == 4:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    return {"id": f"r{number}", "messages": messages, "images": images}


CHATS = [chat(number) for number in range(18)]


def put(folder: Path, name: str, kind: str, records: Sequence[Record]) -> str:
    """A file of a kind with a name of its own."""
    path = Path(write(folder, kind, records))
    return str(path.rename(folder / f"{name}.{kind}"))


def test_every_container(data: Path, encoder: Remembering, tmp_path: Path) -> None:
    """A file of each kind gives the samples of JSON Lines."""
    sources = {kind: put(data, "data", kind, CHATS) for kind in KINDS}
    found = read(tmp_path, encoder, sources)
    shards = open_index(tmp_path / "index").manifest["shards"]
    assert [one.get("container", "jsonl") for one in shards] == [*KINDS]
    expected = found["jsonl"]
    assert {f"r{n}" for n in range(len(CHATS))} == set(expected)
    num_images = sum(len(record["images"]) for record in CHATS)
    assert sum(len(built.grids) for built in expected.values()) == num_images
    assert len({built.pixels for built in expected.values()}) == 1 + 2 * len(SIZES)
    for name, samples in found.items():
        assert samples == expected, name


@pytest.fixture
def frames(data: Path) -> list[str]:
    """Frames extracted from a clip that lies beside them."""
    write_clip(data / "clip.mp4", frames=12, size=(84, 56), fps="4")
    names = []
    for number, pixels in enumerate(decode(data / "clip.mp4")[::3]):
        names.append(f"frame{number}.png")
        Image.fromarray(pixels).save(data / names[-1])
    return names


def clip_chat(name: str, *videos: Any) -> Record:
    messages = [
        {"role": "user", "content": "<video>" * len(videos) + "What happens?"},
        {"role": "assistant", "content": "It moves."},
    ]
    return {"id": name, "messages": messages, "videos": list(videos)}


def clip_parts(record: Record) -> Record:
    """The videos as content parts, and what else the record says."""
    user, answer = record["messages"]
    parts: list[Any] = [
        {"type": "video", **(one if isinstance(one, dict) else {"video": one})}
        for one in record["videos"]
    ]
    parts.append({"type": "text", "text": user["content"].replace("<video>", "")})
    answer = {"role": "assistant", "content": [{"type": "text", "text": answer["content"]}]}
    kept = {key: value for key, value in record.items() if key not in ("messages", "videos")}
    return {**kept, "messages": [{"role": "user", "content": parts}, answer]}


KINDS_OF_CLIPS = ("jsonl", "json.gz", "csv", "parquet", "arrow")


def test_videos(data: Path, frames: list[str], encoder: Remembering, tmp_path: Path) -> None:
    """A file, stated frames of a file, and frames that were extracted from it."""
    with lmdb.open(str(data / "db.lmdb")) as database, database.begin(write=True) as put_in:
        for name in ("clip.mp4", *frames):
            put_in.put(name.encode(), (data / name).read_bytes())
    stated = {"frame_indices": [0, 3, 6, 9], "fps": 4.0}
    forms = {
        "file": [clip_chat("a", "clip.mp4"), clip_chat("b", "clip.mp4", "clip.mp4")],
        "frames": [clip_chat("a", frames), clip_chat("b", frames, frames[:2])],
        "stated": [clip_chat("a", {"path": "clip.mp4", **stated})],
        "listed": [clip_chat("a", {"frames": frames, "fps": 1.5})],
        "lmdb": [clip_chat("a", "db.lmdb::clip.mp4"), clip_chat("b", *["db.lmdb::clip.mp4"] * 2)],
        "keys": [clip_chat("a", [f"db.lmdb::{name}" for name in frames])],
    }  # apart: a column of a table has one type
    meta = {"videos_meta": [[12, 56, 84, 4.0, 3.0]]}
    forms["meta"] = [{**clip_chat("a", "clip.mp4"), "mm_inputs_meta": meta}]
    sources = {
        f"{name}.{form}.{kind}": put(data, f"{name}-{form}", kind, list(map(change, records)))
        for name, records in forms.items()
        for form, change in (("list", dict), ("parts", clip_parts))
        for kind in KINDS_OF_CLIPS
    }
    found = read(tmp_path, encoder, sources)
    for name, samples in found.items():
        assert samples == found[name.partition(".")[0] + ".list.jsonl"], name
        assert samples["a"].grids[0][1:] == [4, 6]
    listed = {name: found[f"{name}.list.jsonl"] for name in forms}
    assert listed["file"] == listed["lmdb"]
    assert listed["file"]["a"] == listed["meta"]["a"]
    assert listed["frames"]["a"] == listed["keys"]["a"]
    assert listed["stated"]["a"].grids == listed["frames"]["a"].grids == [[2, 4, 6]]
    assert listed["stated"]["a"].pixels == listed["frames"]["a"].pixels
    members = [("a.mp4", (data / "clip.mp4").read_bytes())]
    members.append(("a.json", json.dumps(clip_chat("a", "mp4")).encode()))
    members += [(f"b.{name}", (data / name).read_bytes()) for name in frames]
    members.append(("b.json", json.dumps(clip_chat("b", frames)).encode()))
    (data / "clips.tar").write_bytes(tar_of(members))
    in_tar = read(tmp_path / "again", encoder, {"tar": str(data / "clips.tar")})["tar"]
    assert in_tar == {"a": listed["file"]["a"], "b": listed["frames"]["a"]}
