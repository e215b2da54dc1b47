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


class Reader:
    """From sources to samples by way of lengths and index, checked on the way."""

    def __init__(self, folder: Path, encoder: Remembering) -> None:
        self.folder, self.encoder = folder, encoder
        self._runs = 0

    def plan(self, sources: Mapping[str, str] | str, **options: Any) -> Path:
        """An index of sources by name, or of a mix."""
        self._runs += 1
        here = self.folder / f"run{self._runs}"
        name = self.encoder.files.name
        named = sources if isinstance(sources, str) else [f"{k}={v}" for k, v in sources.items()]
        summary = estimate_lengths(named, here / "l", processor=name, workers=1, **options)
        assert summary.num_rejected == 0, summary.rejected
        assert set(summary.methods) == {"exact"}
        plan_packs(here / "l", here / "index", capacity=CAPACITY)
        return here / "index"

    def read(self, index: Path, roots: dict[str, str] | None = None) -> Sources:
        """Every sample of every pack, by its source and key."""
        dataset = PackedDataset(index, self.encoder, roots)
        found: Sources = {one["name"]: {} for one in dataset.index.manifest["sources"]}
        for number in range(len(dataset)):
            self.encoder.built = []
            pack = dataset[number].joined()
            samples = dataset.index.pack(number).samples
            bounds = itertools.pairwise(pack["cu_seqlens"].tolist())
            for sample, built, (first, last) in zip(
                samples, self.encoder.built, bounds, strict=True
            ):
                labels = pack["labels"][first:last]
                assert last - first == sample.length
                assert int((labels != -100).sum()) == sample.label_tokens
                assert torch.equal(pack["input_ids"][first:last], built["input_ids"])
                found[str(sample.source)][str(sample.key)] = described(built, labels)
        total = sum(len(samples) for samples in found.values())
        assert total == dataset.index.manifest["lengths"]["num_samples"]
        return found

    def __call__(self, sources: Mapping[str, str] | str, **options: Any) -> Sources:
        return self.read(self.plan(sources, **options))


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
def reader(tmp_path: Path, encoder: Remembering) -> Reader:
    return Reader(tmp_path, encoder)


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


def own(record: Record) -> Record:
    """The same record in words of its own."""
    words = {"user": "U", "assistant": "A", "system": "S"}
    turns = [{"who": words[m["role"]], "text": m["content"]} for m in record["messages"]]
    return {"uuid": record["id"], "chat": turns, "pics": record["images"]}


COLUMNS = {"id": "uuid", "messages": "chat", "images": "pics"}
TAGS = {
    "role_tag": "who",
    "content_tag": "text",
    "user_tag": "U",
    "assistant_tag": "A",
    "system_tag": "S",
}


def of_one_type(records: Sequence[Record]) -> list[Record]:
    """As a column holds them: lists of parts in every turn, where there are some in one."""

    def parts(turn: Record) -> Record:
        text = turn["content"]
        return (
            {**turn, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else turn
        )

    found = [dict(record) for record in records]
    for name in ("messages", "conversation"):
        turns = [turn for record in records for turn in record.get(name, ())]
        if any(isinstance(t, dict) and isinstance(t["content"], list) for t in turns):
            found = [{**record, name: [parts(turn) for turn in record[name]]} for record in found]
    return found


def put(folder: Path, name: str, kind: str, records: Sequence[Record]) -> str:
    """A file of a kind with a name of its own."""
    if kind in ("parquet", "arrow"):
        records = of_one_type(records)
    path = Path(write(folder, kind, records))
    return str(path.rename(folder / f"{name}.{kind}"))


@pytest.fixture
def as_jsonl(data: Path) -> dict[str, str]:
    """`CHATS` as JSON Lines, the source that every other must equal."""
    return {"expected": put(data, "expected", "jsonl", CHATS)}


def check(found: Sources) -> None:
    """All sources equal the expected one, which is not empty."""
    expected = found["expected"]
    assert list(expected) and {f"r{n}" for n in range(len(CHATS))} == set(expected)
    num_images = sum(len(record["images"]) for record in CHATS)
    assert sum(len(built.grids) for built in expected.values()) == num_images
    assert len({built.pixels for built in expected.values()}) == 1 + 2 * len(SIZES)
    for name, samples in found.items():
        assert samples == expected, name


def test_every_container(data: Path, reader: Reader, as_jsonl: dict[str, str]) -> None:
    sources = {kind: put(data, "data", kind, CHATS) for kind in KINDS}
    index = reader.plan({**sources, **as_jsonl})
    shards = open_index(index).manifest["shards"]
    assert [one.get("container", "jsonl") for one in shards] == [*KINDS, "jsonl"]
    check(reader.read(index))


def in_bytes(record: Record, data: Path) -> Record:
    images = [{"bytes": (data / name).read_bytes(), "path": name} for name in record["images"]]
    return {**record, "images": images}


def test_images_inside_tables(data: Path, reader: Reader, as_jsonl: dict[str, str]) -> None:
    """As `datasets` has them: an object of bytes and path, either of which may be null."""
    inside = [in_bytes(record, data) for record in CHATS]
    apart = [{**r, "images": [{"bytes": None, "path": p} for p in r["images"]]} for r in CHATS]
    (data.parent / "far").mkdir()
    sources = dict(as_jsonl)
    for kind in ("parquet", "arrow"):
        sources[f"inside.{kind}"] = put(data.parent / "far", "inside", kind, inside)
        sources[f"apart.{kind}"] = put(data, "apart", kind, apart)
    check(reader(sources))


def test_a_meta_file(data: Path, reader: Reader) -> None:
    """Each data set with columns, tags, a media folder and a ratio of its own."""
    (data / "media").mkdir()
    for path in data.glob("*.png"):
        path.rename(data / "media" / path.name)
    put(data / "media", "expected", "jsonl", CHATS)
    put(data, "own", "json", [own(record) for record in CHATS])
    meta = {
        "own": {
            "file_name": "own.json",
            "columns": COLUMNS,
            "tags": TAGS,
            "media_dir": "media",
            "sample_ratio": 2.0,
        },
        "expected": {"file_name": "media/expected.jsonl"},
    }
    (data / "meta.json").write_text(json.dumps(meta))
    index = reader.plan(str(data / "meta.json"))
    first, second = open_index(index).manifest["sources"]
    assert first["media_root"] == str(data / "media")
    assert first["layout"] == {
        "columns": COLUMNS,
        "tags": TAGS,
        "sample_ratio": 2.0,
        "media_root": str(data / "media"),
    }
    assert second["media_root"] is None and "layout" not in second
    check(reader.read(index))
    data.rename(data.parent / "moved")
    check(reader.read(index, {str(data): str(data.parent / "moved")}))
    (data.parent / "moved" / "media").rename(data.parent / "pictures")
    roots = {str(data): str(data.parent / "moved")}
    roots[str(data / "media")] = str(data.parent / "pictures")
    check(reader.read(index, roots))


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


def test_videos(data: Path, frames: list[str], reader: Reader) -> None:
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
    found = reader(sources)
    for name, samples in found.items():
        assert samples == found[name.partition(".")[0] + ".list.jsonl"], name
        assert samples["a"].grids[0][1:] == [4, 6]
    read = {name: found[f"{name}.list.jsonl"] for name in forms}
    assert read["file"] == read["lmdb"]
    assert read["file"]["a"] == read["meta"]["a"]
    assert read["frames"]["a"] == read["keys"]["a"]
    assert read["stated"]["a"].grids == read["frames"]["a"].grids == [[2, 4, 6]]
    assert read["stated"]["a"].pixels == read["frames"]["a"].pixels
    members = [("a.mp4", (data / "clip.mp4").read_bytes())]
    members.append(("a.json", json.dumps(clip_chat("a", "mp4")).encode()))
    members += [(f"b.{name}", (data / name).read_bytes()) for name in frames]
    members.append(("b.json", json.dumps(clip_chat("b", frames)).encode()))
    (data / "clips.tar").write_bytes(tar_of(members))
    in_tar = reader({"tar": str(data / "clips.tar")})["tar"]
    assert in_tar == {"a": read["file"]["a"], "b": read["frames"]["a"]}
