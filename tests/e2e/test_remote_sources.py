"""Sources and media in an S3 bucket: the same tables and packs as from disk, no other places."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from object_store import URL, Store
from PIL import Image
from record_files import chats, write

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import BadRecord
from packidx.records.shards import short_names
from packidx.records.sources.find_shards import find_shards
from packidx.torch import PackedDataset

KINDS = ("jsonl", "json", "csv", "parquet", "arrow", "tar", "jsonl.gz", "json.zst", "csv.gz")
COUNT = 16


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same conversations in every kind of file, images beside or inside."""
    folder = tmp_path_factory.mktemp("here")
    rng = np.random.default_rng(5)
    for kind in KINDS:
        (folder / "kinds" / kind).mkdir(parents=True)
        for number in range(COUNT):
            size = (30 + 5 * (number % 4), 40 + 9 * (number % 7), 3)
            image = Image.fromarray(rng.integers(0, 256, size, np.uint8))
            image.save(folder / "kinds" / kind / f"{number}.png")
        write(folder / "kinds" / kind, kind, chats(COUNT))
    _more(folder)
    return folder


def _more(folder: Path) -> None:
    """An Energon data set, a mix, and files that differ in a number."""
    tars = folder / "energon"
    (tars / ".nv-meta").mkdir(parents=True)
    for name in ("a.tar", "b.tar"):
        shutil.copy(folder / "kinds" / "tar" / "data.tar", tars / name)
    info = {"shard_counts": {"a.tar": COUNT, "b.tar": COUNT}}
    (tars / ".nv-meta" / ".info.json").write_text(json.dumps(info))
    split = {"split_parts": {"train": ["a.tar"], "val": ["b.tar"]}}
    (tars / ".nv-meta" / "split.yaml").write_text(json.dumps(split))
    line = (folder / "kinds" / "jsonl" / "data.jsonl").read_bytes()
    for name in ("x-00000-of-00002.jsonl", "x-00001-of-00002.jsonl", "sub/y.jsonl", ".z.jsonl"):
        (folder / "many" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "many" / name).write_bytes(line)
    (folder / "many" / "settings.json").write_text('{\n"a": 1\n}')
    mix = {"m": {"file_name": "many/x-*.jsonl", "media_dir": "kinds/jsonl"}}
    (folder / "mix.json").write_text(json.dumps(mix))


@pytest.fixture(scope="module")
def there(store: Store, here: Path) -> str:
    return store.put_tree(here, "there")


def tables(folder: Path) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))]
    assert found
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(sorted(folder.glob("part-*.parquet"))).to_pylist()
    return found


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


@pytest.fixture(scope="module")
def counted(
    here: Path, there: str, processors: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Tables of all kinds: of the files here, and of those there."""
    out = tmp_path_factory.mktemp("counted")
    for name, place in (("here", str(here)), ("there", there)):
        sources = [f"{kind}={place}/kinds/{kind}/data.{kind}" for kind in KINDS]
        processor = str(processors / "qwen2.5-vl")
        estimate_lengths(sources, out / name, processor=processor, workers=2)
    return out


# -- sources ---------------------------------------------------------------------------------------

SOURCES = {
    "file": ["kinds/csv.gz/data.csv.gz"],
    "array": ["kinds/json/data.json"],
    "named": ["my=@kinds/tar/data.tar"],
    "glob": ["many/x-*.jsonl"],
    "deep glob": ["many/**/*.jsonl"],
    "folder": ["many"],
    "folder/": ["many/"],
    "everything": ["kinds", "many"],
    "energon": ["energon"],
    "a split": ["energon#val"],
    "two splits": ["energon#val,train"],
    "mix": ["mix.json"],
    "part of a mix": ["mix.json#m"],
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_found_as_on_disk(here: Path, there: str, name: str) -> None:
    def found(place: str) -> list[tuple[str, ...]]:
        given = [one.replace("@", f"{place}/") for one in SOURCES[name]]
        given = [one if "=" in one else f"{place}/{one}" for one in given]
        shards = find_shards(given)
        names = short_names([shard.path for shard in shards])
        return [
            (one.path.removeprefix(place), one.source, one.container, short)
            + (str(one.layout.media_root or "").removeprefix(place),)
            for one, short in zip(shards, names, strict=True)
        ]

    assert found(there) == found(str(here))
    assert found(there)


# -- lengths ---------------------------------------------------------------------------------------


def test_lengths_have_the_same_bytes(counted: Path, there: str) -> None:
    assert tables(counted / "there") == tables(counted / "here")
    ours, theirs = manifest(counted / "there"), manifest(counted / "here")
    assert ours["fingerprint"] == theirs["fingerprint"]
    assert [one["uri"] for one in ours["shards"]] == [
        f"{there}/kinds/{kind}/data.{kind}" for kind in KINDS
    ]
    plain = [one["fingerprint"] for one in theirs["shards"]]  # uri and marks are of the place
    assert [one["fingerprint"] for one in ours["shards"]] == plain
    assert all("version" in one for one in ours["shards"])
    found = rows(counted / "there")
    assert {one["source"] for one in found} == set(KINDS)
    assert {(one["status"], one["method"], one["num_images"]) for one in found} == {
        ("ok", "exact", 1)
    }


def test_videos_and_frames(
    store: Store, processors: Path, encoder: ProcessorEncoder, tmp_path: Path
) -> None:
    folder = tmp_path / "clips"
    folder.mkdir()
    write_clip(folder / "a.mp4", frames=12, size=(84, 56), fps="4")
    write_clip(folder / "b.mkv", frames=9, size=(84, 56), fps="3")
    for number in range(4):
        Image.new("RGB", (60, 40), (9 * number, 0, 0)).save(folder / f"{number}.png")
    turns = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "!"}]
    videos = ["a.mp4", "b.mkv", [f"{number}.png" for number in range(4)]]
    lines = [json.dumps({"messages": turns, "videos": [one]}) for one in videos]
    (folder / "x.jsonl").write_text("\n".join(lines))
    url = store.put_tree(folder, "clips")
    packs = []
    for name, source in (("here", str(folder / "x.jsonl")), ("there", f"{url}/x.jsonl")):
        processor = str(processors / "qwen2.5-vl")
        summary = estimate_lengths(source, tmp_path / name, processor=processor, workers=1)
        assert (summary.num_rejected, summary.num_samples) == (0, 3), summary.rejected
        plan_packs(tmp_path / name, tmp_path / f"{name}-index", capacity=2048)
        packs.append(PackedDataset(tmp_path / f"{name}-index", encoder)[0].joined())
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    assert_equal(packs[1], packs[0])


# -- the reader ------------------------------------------------------------------------------------


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        same = torch.equal(found[key], value) if torch.is_tensor(value) else found[key] == value
        assert same, key


@pytest.fixture(scope="module")
def encoder(processors: Path) -> ProcessorEncoder:
    return ProcessorEncoder(str(processors / "qwen2.5-vl"))


@pytest.fixture(scope="module")
def index(counted: Path) -> Path:
    plan_packs(counted / "there", counted / "index", capacity=512)
    return counted / "index"


def test_packs_equal_those_from_disk(
    index: Path, store: Store, here: Path, there: str, encoder: ProcessorEncoder
) -> None:
    """Planned there and read there, and read here by `roots`; the sources take turns in packs."""
    ours, theirs = PackedDataset(index, encoder), PackedDataset(index, encoder, {there: str(here)})
    store.forget()
    expected = [pack.joined() for pack in theirs]
    assert not store.requests
    assert len(expected) > 10
    for number, pack in enumerate(expected):
        assert_equal(ours[number].joined(), pack)
    heads = [one.path for one in store.requests if one.method == "HEAD"]
    assert len(heads) == len(set(heads)) == len(KINDS)  # of each shard, once


IMAGES = f"{URL}/images"


@pytest.fixture(scope="module")
def images(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store, with images at three places."""
    folder = tmp_path_factory.mktemp("bucket")
    for place in ("images/in", "images-private", "chats/in"):
        (folder / place).mkdir(parents=True)
        Image.new("RGB", (40, 30)).save(folder / place / "a.png")
    store.put_tree(folder)
    return store


REFERENCES: dict[str, str | None] = {
    "a.png": None,
    f"{IMAGES}/in/a.png": None,
    f"{IMAGES}/./in/../in/a.png": None,
    f"S3{IMAGES[2:]}/in/a.png": None,
    f"{IMAGES}/../images/in/a.png": None,
    IMAGES: "missing_media",
    f"{IMAGES}/none.png": "missing_media",
    f"{IMAGES}/{'n' * 3000}": "missing_media",
    f"{IMAGES}/caf\u00e9 \u2603?versionId=1#x.png": "missing_media",
    f"{IMAGES}/[a-z]*.png": "missing_media",
    f"{IMAGES}-private/a.png": "media_remote",
    f"{IMAGES}/../images-private/a.png": "media_remote",
    f"{IMAGES}/in/../../images-private/a.png": "media_remote",
    f"{IMAGES}/in/../../../other/images/in/a.png": "media_remote",
    f"{URL}/a.png": "media_remote",
    "s3://other/images/in/a.png": "media_remote",
    "gs://corpus/images/in/a.png": "media_remote",
    "s3://": "media_remote",
}


def record(ref: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "it"}]
    return {"messages": turns, "images": [ref]}


def write_refs(path: Path, *refs: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(json.dumps(record(ref)) for ref in refs))
    return str(path)


def reasons(folder: Path) -> list[str | None]:
    rows = pq.read_table(sorted(folder.glob("part-*"))).to_pylist()
    return [row["reason"] for row in rows]


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = write_refs(tmp_path / "data" / "x.jsonl", *REFERENCES)
    Image.new("RGB", (40, 30)).save(tmp_path / "data" / "a.png")
    return path


@pytest.mark.parametrize("prefix", [IMAGES, f"{IMAGES}/", f"{URL}/chats/../images"])
@pytest.mark.parametrize("confined", [True, False])
def test_what_is_allowed_is_below_the_prefix_by_whole_names(
    images: Store, tmp_path: Path, shard: str, prefix: str, confined: bool
) -> None:
    images.forget()
    root = str(tmp_path / "data") if confined else None
    estimate_lengths(shard, tmp_path / "l", media_root=root, remote_media=[prefix], workers=1)
    assert reasons(tmp_path / "l") == list(REFERENCES.values())
    assert images.requests
    assert all(
        one.path.startswith("/corpus/images/")
        for one in images.requests
        if one.path != "/corpus/images"
    )


def encode_image(opened: Any) -> dict[str, Any]:
    assert [image.size for image in opened["images"]] == [(40, 30)]
    return {"input_ids": list(range(502))}


def test_the_reader_goes_where_the_plan_was_allowed_to(images: Store, tmp_path: Path) -> None:
    ref = f"{IMAGES}/in/a.png"
    path = Path(write_refs(tmp_path / "data" / "x.jsonl", ref))
    options: dict[str, Any] = {"media_root": path.parent, "remote_media": [IMAGES], "workers": 1}
    estimate_lengths(str(path), tmp_path / "l", **options)
    manifest = json.loads((tmp_path / "l" / "manifest.json").read_text())
    assert manifest["options"]["remote_media"] == [IMAGES]
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=510, margin=0.0)
    assert open_index(tmp_path / "i").manifest["sources"][0]["remote_media"] == [IMAGES]
    assert len(PackedDataset(tmp_path / "i", encode_image)[0].joined()["input_ids"]) == 502
    images.forget()
    (tmp_path / "copy" / "in").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "copy" / "in" / "a.png")
    moved = {IMAGES: str(tmp_path / "copy")}
    assert len(PackedDataset(tmp_path / "i", encode_image, moved)[0].joined()["input_ids"]) == 502
    elsewhere = f"{IMAGES[:-6]}secret/in/a.png"  # the shard keeps its size
    path.write_text(path.read_text().replace(ref, elsewhere))
    for roots in ({}, moved, {URL: str(tmp_path / "copy")}):
        with pytest.raises(BadRecord, match="media_remote|media_outside_root"):
            PackedDataset(tmp_path / "i", encode_image, roots)[0]
    assert images.requests == []


def test_a_plan_that_was_allowed_nothing_reads_nothing(images: Store, tmp_path: Path) -> None:
    path = Path(write_refs(tmp_path / "x.jsonl", "./././././././././././a.png"))
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    estimate_lengths(str(path), tmp_path / "l", workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=510, margin=0.0)
    ref = f"{URL}/in/a.png"
    path.write_text(path.read_text().replace("./././././././././././a.png", ref.ljust(27, "g")))
    path.write_text(path.read_text().ljust(path.stat().st_size))
    images.forget()
    with pytest.raises(BadRecord, match="media_remote"):
        PackedDataset(tmp_path / "i", encode_image)[0]
    assert images.requests == []
