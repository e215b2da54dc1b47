"""Data that has moved, and media roots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from reading import open_media

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import BadRecord
from packidx.records.fetch import Fetcher
from packidx.records.media.paths import MediaRoot
from packidx.torch import PackedDataset


def record(image: str, **extra: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "that"}]
    return {"messages": turns, "images": [image], **extra}


def write(path: Path, *records: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(path)


def make_image(path: Path, width: int = 30, height: int = 20) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return str(path)


def encode(opened: Mapping[str, Any]) -> dict[str, Any]:
    """500 tokens an image and a third of the characters, as an estimate without a processor."""
    assert all(image.size == (30, 20) for image in opened["images"])
    characters = len("what?") + len("that")
    return {"input_ids": list(range(500 * len(opened["images"]) + characters // 3))}


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_roots_lead_to_absolute_media_too(tmp_path: Path, confined: bool, scheme: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new place"
    image = make_image(old / "img" / "a b.png")
    reference = scheme + (image.replace(" ", "%20") if scheme else image)
    shard = write(old / "data.jsonl", record(reference))
    root = str(old) if confined else None
    summary = estimate_lengths(shard, tmp_path / "l", media_root=root, workers=1)
    assert summary.num_rejected == 0
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=1000)
    shutil.move(old, new)
    dataset = PackedDataset(tmp_path / "i", encode, roots={str(old): str(new)})
    assert len(dataset[0].joined()["input_ids"]) == 503
    with pytest.raises(Exception, match=str(old)):
        PackedDataset(tmp_path / "i", encode)[0]


SECRET = (90, 70)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "in").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    Image.new("RGB", SECRET).save(tmp_path / "outside" / "in" / "a.png")
    return tmp_path / "root"


def opened(ref: Any, root: MediaRoot, moved: Callable[[str], str] = str) -> Any:
    record = {"messages": [{"role": "user", "content": "<image>?"}], "images": [ref]}
    return open_media(record, root, moved)["images"][0].size


def test_without_a_media_root_a_shard_has_its_own_folder(root: Path) -> None:
    """What is rejected says what to type for it, and that is enough, for the reader, too."""
    secret = root.parent / "outside" / "in" / "a.png"
    (root / "linked.png").symlink_to(secret)
    texts = [str(secret), "linked.png", "../outside/in/a.png"]
    turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "So."}]
    (root / "a.jsonl").write_text(
        "".join(f"{json.dumps({'messages': turns, 'images': [one]})}\n" for one in texts)
    )
    outside = str(secret.parent)
    (secret.parent / "none").mkdir()
    places = [str(secret.parent / "none"), outside]
    for number, (options, rejected) in enumerate(
        [
            ({}, {"media_outside_root": 3}),
            ({"media_root": root}, {"media_outside_root": 3}),
            ({"media_root": outside}, {"media_outside_root": 1, "missing_media": 1}),
            ({"remote_media": places, "media_root": root}, {}),
            ({"remote_media": [outside]}, {}),
        ]
    ):
        output = root.parent / f"lengths-{number}"
        assert estimate_lengths(str(root / "a.jsonl"), output, **options).rejected == rejected
        rows = pq.read_table(next(output.glob("part-00000*"))).to_pylist()
        typed = ["--media-root" if number == 0 else "--remote-media", *["--remote-media"] * 2]
        for row, option in zip(rows, typed if number < 2 else (), strict=number < 2):
            assert f": allow it with {option} {outside} if the data is" in row["detail"]
    plan_packs(output, root.parent / "i", capacity=4096)
    moved = root.parent / "moved"
    secret.parent.rename(moved)
    (root / "linked.png").unlink(), (root / "linked.png").symlink_to(moved / "a.png")
    index = open_index(root.parent / "i", {outside: str(moved)})
    for sample in index.pack(0).samples:
        place = Fetcher(index).record(sample)[1]
        for ref in (str(secret), str(moved / "a.png"), "linked.png"):
            assert opened(ref, place, index.resolve) == SECRET
        with pytest.raises(BadRecord, match="media_outside_root"):
            opened(str(root.parent / "other.png"), place, index.resolve)
