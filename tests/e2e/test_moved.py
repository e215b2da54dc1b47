"""Data that has moved or changed since it was counted, and media roots."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from reading import open_media

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import BadRecord, ChangedSource, SourceError
from packidx.index import Index
from packidx.inspect.verify import verify_index
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


def letters(record: dict[str, Any]) -> dict[str, Any]:
    """A token for each letter of the answer."""
    return {"input_ids": torch.tensor([ord(letter) for letter in record["messages"][1]["content"]])}


def lines(words: list[str]) -> bytes:
    turns = ([{"role": "user", "content": "?"}, {"role": "assistant", "content": w}] for w in words)
    return b"".join(json.dumps({"messages": one}).encode() + b"\n" for one in turns)


WORDS = [f"{number:04d}" for number in range(40)]
OTHER = ["abcd", *WORDS[1:]]


def planned(folder: Path, source: Path | str, **options: Any) -> Index:
    estimate_lengths(str(source), folder / "lengths", encode=letters, workers=1)
    plan_packs(folder / "lengths", folder / "index", capacity=options.pop("capacity", 16))
    return open_index(folder / "index", **options)


def other_bytes(path: Path, content: bytes) -> None:
    """Other bytes, as many as before, at another time."""
    assert path.stat().st_size == len(content)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


def test_a_copy_is_read_and_other_bytes_are_proved(tmp_path: Path) -> None:
    """The reader compares sizes; `verify` compares contents."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(WORDS))
    index = planned(tmp_path, path)
    other_bytes(path, lines(WORDS))
    dataset = PackedDataset(index, letters)
    assert sum(len(dataset[number].samples) for number in range(len(dataset))) == len(WORDS)
    assert dataset.events.counts == {} and all(check.ok for check in verify_index(index))
    other_bytes(path, lines(OTHER))
    checks = {check.name: check for check in verify_index(index)}
    assert not checks["shards"].ok and "when it was counted" in checks["shards"].detail
    path.write_bytes(lines(WORDS[1:]))
    with pytest.raises(ChangedSource, match="when it was planned"):
        PackedDataset(index, letters)[0]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(lines(["more"]))


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(lines(["abcd", *WORDS[1:30]]))
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut, "bytes before and"),
        (_grown, "bytes before and"),
        (_replaced, "bytes before and"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_shard_that_changes_while_it_is_counted_ends_the_run(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    """Whatever was counted of it: no table is made of two files."""
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(lines(WORDS))
    estimate_lengths(str(shard), tmp_path / "lengths", encode=letters, workers=1)
    before = (tmp_path / "lengths/manifest.json").read_bytes()
    shard.write_bytes(lines(WORDS[:30]))
    seen = 0

    def encode_and_change(record: dict[str, Any]) -> dict[str, Any]:
        nonlocal seen
        seen += 1
        if seen == 20:
            change(shard)
        return letters(record)

    with pytest.raises(SourceError, match=words):
        estimate_lengths(str(shard), tmp_path / "lengths", encode=encode_and_change, workers=1)
    assert seen >= 20
    assert (tmp_path / "lengths/manifest.json").read_bytes() == before
