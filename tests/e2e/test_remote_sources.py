"""Sources and media in an S3 bucket: the same tables and packs as from disk, and what they cost."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision_cpu  # noqa: F401  (before transformers)
from clips import write_clip
from object_store import Store
from PIL import Image
from record_files import chats, write

from packidx import estimate_lengths, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.records.shards import short_names
from packidx.records.sources.find_shards import find_shards
from packidx.torch import PackedDataset, PackSampler

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import bench_remote

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


def test_large_images_are_counted_by_their_headers(store: Store, tmp_path: Path) -> None:
    """Of images of a megabyte: the bytes and the requests that each takes, also in a tar."""
    images, endings = 12, ("jpg", "png")
    size = bench_remote.corpus(tmp_path / "data", images, 2, 900, endings)
    assert size / images > 700_000
    url = store.put_tree(tmp_path / "data", "large")
    for kind in ("files", "tar"):
        store.forget()
        summary = estimate_lengths(f"{url}/{kind}", tmp_path / f"{kind}-there", workers=1)
        assert (summary.num_samples, summary.num_rejected) == (images, 0)
        assert store.read() < 0.2 * size, kind
        # Of a tar each sample is found, looked through for leftovers, and counted.
        most = 3 * images  # of a PNG one more than of a JPEG
        assert len(store.requests) <= most + 16, kind  # 16: to find the shards and their ends
        estimate_lengths(str(tmp_path / "data" / kind), tmp_path / f"{kind}-here", workers=1)
        assert tables(tmp_path / f"{kind}-there") == tables(tmp_path / f"{kind}-here")


def test_a_tar_of_small_samples_is_read_through(store: Store, tmp_path: Path) -> None:
    size = bench_remote.corpus(tmp_path / "data", 200, 1, 70, ("jpg",))
    assert size > 1.3 * (1 << 20)
    url = store.put_tree(tmp_path / "data" / "tar", "small")
    store.forget()
    assert estimate_lengths(url, tmp_path / "out", workers=1).num_rejected == 0
    gets = [one.nbytes for one in store.requests if one.method == "GET" and ".tar" in one.path]
    assert len(gets) <= 4 + 3 * size / (1 << 20) and max(gets) <= 1 << 20, gets


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


def test_a_reader_moves_what_it_uses(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for each record and each image, of tars for each sample; Parquet once."""
    images = 24
    bench_remote.corpus(tmp_path / "data", images, 4, 300, ("jpg", "png"))
    url = store.put_tree(tmp_path / "data", "moved")
    for kind, most in (("files", 1.2), ("tar", 1.2), ("parquet", 1.5)):
        out = tmp_path / kind
        estimate_lengths(f"{url}/{kind}", out / "l", workers=1)
        windows = {"window": 1} if kind == "parquet" else {}
        plan_packs(out / "l", out / "index", capacity=4096, margin=0.0, **windows)
        monkeypatch.setenv("PACKIDX_CACHE", str(out / "cache"))
        (length,) = {one["length"] for one in rows(out / "l")}
        ids = torch.ones(length, dtype=torch.int64)
        dataset = PackedDataset(out / "index", lambda _, ids=ids: {"input_ids": ids})
        used = sum(path.stat().st_size for path in (tmp_path / "data" / kind).iterdir())
        store.forget()
        order = list(PackSampler(dataset.index, global_batch=1, seed=3))
        assert sorted(order) == list(range(len(dataset)))
        for number in order:
            dataset[number]
        assert 0.9 * used < store.read() <= most * used, kind
        gets = sum(one.method == "GET" for one in store.requests)
        assert gets == {"files": 2 * images, "tar": images, "parquet": 4}[kind]
        heads = sum(one.method == "HEAD" for one in store.requests)
        assert heads == {"files": 4, "tar": 4, "parquet": 8}[kind]  # a copy is asked for again
