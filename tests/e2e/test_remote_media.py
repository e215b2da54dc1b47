"""References to object stores: none is followed that the user did not allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from object_store import URL, Store, object_store
from PIL import Image

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import BadRecord
from packidx.torch import PackedDataset

IMAGES = f"{URL}/images"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(tmp_path_factory.mktemp("cache")) as found:
        folder = tmp_path_factory.mktemp("bucket")
        for place in ("images/in", "images-private", "chats/in"):
            (folder / place).mkdir(parents=True)
            Image.new("RGB", (40, 30)).save(folder / place / "a.png")
        found.put_tree(folder)
        yield found


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


def write(path: Path, *refs: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(json.dumps(record(ref)) for ref in refs))
    return str(path)


def reasons(folder: Path) -> list[str | None]:
    rows = pq.read_table(sorted(folder.glob("part-*"))).to_pylist()
    return [row["reason"] for row in rows]


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = write(tmp_path / "data" / "x.jsonl", *REFERENCES)
    Image.new("RGB", (40, 30)).save(tmp_path / "data" / "a.png")
    return path


@pytest.mark.parametrize("prefix", [IMAGES, f"{IMAGES}/", f"{URL}/chats/../images"])
@pytest.mark.parametrize("confined", [True, False])
def test_what_is_allowed_is_below_the_prefix_by_whole_names(
    store: Store, tmp_path: Path, shard: str, prefix: str, confined: bool
) -> None:
    store.forget()
    root = str(tmp_path / "data") if confined else None
    estimate_lengths(shard, tmp_path / "l", media_root=root, remote_media=[prefix], workers=1)
    assert reasons(tmp_path / "l") == list(REFERENCES.values())
    assert store.requests
    assert all(
        one.path.startswith("/corpus/images/")
        for one in store.requests
        if one.path != "/corpus/images"
    )


def encode(opened: Any) -> dict[str, Any]:
    assert [image.size for image in opened["images"]] == [(40, 30)]
    return {"input_ids": list(range(502))}


def test_the_reader_goes_where_the_plan_was_allowed_to(store: Store, tmp_path: Path) -> None:
    ref = f"{IMAGES}/in/a.png"
    path = Path(write(tmp_path / "data" / "x.jsonl", ref))
    options: dict[str, Any] = {"media_root": path.parent, "remote_media": [IMAGES], "workers": 1}
    estimate_lengths(str(path), tmp_path / "l", **options)
    manifest = json.loads((tmp_path / "l" / "manifest.json").read_text())
    assert manifest["options"]["remote_media"] == [IMAGES]
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=510, margin=0.0)
    assert open_index(tmp_path / "i").manifest["sources"][0]["remote_media"] == [IMAGES]
    assert len(PackedDataset(tmp_path / "i", encode)[0].joined()["input_ids"]) == 502
    store.forget()
    (tmp_path / "copy" / "in").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "copy" / "in" / "a.png")
    moved = {IMAGES: str(tmp_path / "copy")}
    assert len(PackedDataset(tmp_path / "i", encode, moved)[0].joined()["input_ids"]) == 502
    elsewhere = f"{IMAGES[:-6]}secret/in/a.png"  # the shard keeps its size
    path.write_text(path.read_text().replace(ref, elsewhere))
    for roots in ({}, moved, {URL: str(tmp_path / "copy")}):
        with pytest.raises(BadRecord, match="media_remote|media_outside_root"):
            PackedDataset(tmp_path / "i", encode, roots)[0]
    assert store.requests == []


def test_a_plan_that_was_allowed_nothing_reads_nothing(store: Store, tmp_path: Path) -> None:
    path = Path(write(tmp_path / "x.jsonl", "./././././././././././a.png"))
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    estimate_lengths(str(path), tmp_path / "l", workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=510, margin=0.0)
    ref = f"{URL}/in/a.png"
    path.write_text(path.read_text().replace("./././././././././././a.png", ref.ljust(27, "g")))
    path.write_text(path.read_text().ljust(path.stat().st_size))
    store.forget()
    with pytest.raises(BadRecord, match="media_remote"):
        PackedDataset(tmp_path / "i", encode)[0]
    assert store.requests == []
