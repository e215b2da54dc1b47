"""A media root is not left when a folder in it becomes a link after it was looked at."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow.parquet as pq
import pytest
from clips import write_clip
from PIL import Image

from packidx import estimate_lengths, open_index, plan_packs
from packidx.errors import BadRecord, SourceError
from packidx.export.wds import export_wds
from packidx.records.conversation import Media
from packidx.records.fetch import Fetcher
from packidx.records.media import inside
from packidx.records.media.opener import forget_media, media_size, open_media
from packidx.records.media.paths import MediaRoot
from packidx.records.media.video import Video, media_info
from packidx.torch import PackedDataset

SIZE, SECRET = (40, 30), (90, 70)


def fill(folder: Path, size: tuple[int, int]) -> None:
    """Images, a clip and databases; those outside have another size."""
    (folder / "folder.lmdb").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", size).save(folder / name)
    write_clip(folder / "a.mp4", frames=3, size=size)
    write_clip(folder / "b.mp4", frames=3, size=size)
    for place, below in (("a.lmdb", False), ("b.lmdb", False), ("folder.lmdb", True)):
        with (
            lmdb.open(str(folder / place), map_size=1 << 20, subdir=below) as database,
            database.begin(write=True) as transaction,
        ):
            transaction.put(b"k", (folder / "a.png").read_bytes())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "root" / "in", SIZE)
    fill(tmp_path / "outside" / "in", SECRET)
    forget_media()
    return tmp_path / "root"


@pytest.fixture(params=[True, False], ids=["asked", "compared"])
def holding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways to know where a file lies: by what Linux says, and by what every system does."""
    if not request.param:
        monkeypatch.setattr(inside, "_HAS_PROC", False)
    yield


def exchange(root: Path) -> None:
    (root / "in").rename(root / "was")
    (root / "in").symlink_to(root.parent / "outside" / "in")


def opened(ref: Any, root: MediaRoot, moved: Callable[[str], str] = str) -> Any:
    record = {"messages": [{"role": "user", "content": "<image>?"}], "images": [ref]}
    return open_media(record, root, moved)["images"][0].size


def frame(ref: Any, root: MediaRoot) -> Any:
    record = {"messages": [{"role": "user", "content": "<video>?"}], "videos": [[ref, ref]]}
    return open_media(record, root)["videos"][0][0].size


def clip(ref: str, root: MediaRoot) -> Any:
    record = {"messages": [{"role": "user", "content": "<video>?"}], "videos": [ref]}
    video = open_media(record, root)["videos"][0]
    return video.frames([0]).shape[1:3][::-1]


def sized(ref: Any, root: MediaRoot) -> Any:
    size = media_size(Media("image", ref), root)
    return size and size[::-1]


def sized_clip(ref: Any, root: MediaRoot) -> Any:
    info = media_info(Media("video", ref), root)
    return info.width, info.height


LOOKS: dict[str, tuple[Callable[[Any, MediaRoot], Any], Any, Any]] = {
    "an image's size": (sized, "in/a.png", "in/b.png"),
    "an image": (opened, "in/a.png", "in/b.png"),
    "an image by its whole path": (opened, "in/a.png", "ROOT/in/b.png"),
    "frames' size": (sized_clip, ["in/a.png"], ["in/b.png"]),
    "a frame": (frame, "in/a.png", "in/b.png"),
    "a clip's size": (sized_clip, "in/a.mp4", "in/b.mp4"),
    "a clip": (clip, "in/a.mp4", "in/b.mp4"),
    "a database": (sized, "in/a.lmdb::k", "in/b.lmdb::k"),
    "an image in a database": (opened, "in/a.lmdb::k", "in/b.lmdb::k"),
    "a database that is a folder": (sized, "in/a.lmdb::k", "in/folder.lmdb::k"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_folder_that_becomes_a_link(root: Path, holding: None, name: str) -> None:
    look, first, second = LOOKS[name]
    if isinstance(second, str):
        second = second.replace("ROOT", str(root))
    allowed = MediaRoot(str(root), True)
    assert look(first, allowed) == SIZE
    exchange(root)
    with pytest.raises(BadRecord, match="media_outside_root.*not inside the media root"):
        look(second, allowed)
    assert look(first.replace("in/", "was/") if isinstance(first, str) else ["was/a.png"], allowed)


def test_a_video_that_was_handed_over_before(root: Path, holding: None) -> None:
    """It is decoded when it is asked to, by then the folder is a link."""
    record = {"messages": [{"role": "user", "content": "<video>?"}], "videos": ["in/a.mp4"]}
    video = open_media(record, MediaRoot(str(root), True))["videos"][0]
    assert isinstance(video, Video)
    assert os.fspath(video.source) == str(root / "in" / "a.mp4")
    assert video.info.num_frames == 3
    exchange(root)
    with pytest.raises(BadRecord, match="media_outside_root"):
        video.frames([0])


def test_a_root_that_is_a_link_may_be_led_elsewhere(root: Path, holding: None) -> None:
    """By who states it: yesterday's version of a data set, and today's."""
    current = root.parent / "current"
    current.symlink_to(root)
    allowed = MediaRoot(str(current), True)
    assert opened("in/a.png", allowed) == SIZE
    current.unlink()
    current.symlink_to(root.parent / "outside")
    assert opened("in/a.png", allowed) == SECRET


def test_a_folder_that_is_a_link_now_and_then(root: Path) -> None:
    """Whenever it is exchanged, what is read lies in the root, or nothing is."""
    allowed, done = MediaRoot(str(root), True), threading.Event()
    (root / "link").symlink_to(root.parent / "outside" / "in")

    def exchanging() -> None:
        while not done.is_set():
            os.rename(root / "in", root / "was")
            os.rename(root / "link", root / "in")
            os.rename(root / "in", root / "link")
            os.rename(root / "was", root / "in")

    thread = threading.Thread(target=exchanging)
    thread.start()
    outcomes: dict[Any, int] = {}
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and not (
            min(outcomes.get(SIZE, 0), outcomes.get("media_outside_root", 0)) > 100
        ):
            try:
                outcome = opened("in/a.png", allowed)
            except BadRecord as error:
                outcome = error.reason
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    finally:
        done.set()
        thread.join()
    assert outcomes.get(SIZE) and outcomes.get("media_outside_root")
    assert set(outcomes) <= {SIZE, "media_outside_root", "missing_media"}


def test_the_reader_and_the_export_hold_it_too(root: Path, tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": "<image>what?"}], "images": [f"in/{name}.png"]}
        for name in "ab"
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    estimate_lengths(str(tmp_path / "x.jsonl"), tmp_path / "l", media_root=root, workers=1)
    plan_packs(tmp_path / "l", tmp_path / "i", capacity=510, margin=0.0)
    dataset = PackedDataset(tmp_path / "i", lambda record: {"input_ids": list(range(501))})
    assert len(dataset) == 2
    assert len(dataset[0]["input_ids"]) == 501
    exchange(root)
    for number in range(2):
        with pytest.raises(BadRecord, match="media_outside_root"):
            dataset[number]
    with pytest.raises((BadRecord, SourceError), match="not inside the media root"):
        export_wds(open_index(tmp_path / "i"), tmp_path / "tars", workers=1)


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
        rows = pq.read_table(output / "part-00000.parquet").to_pylist()
        typed = ["--media-root" if number == 0 else "--remote-media", *["--remote-media"] * 2]
        for row, option in zip(rows, typed if number < 2 else (), strict=number < 2):
            assert f": allow it with {option} {outside} if the data is" in row["detail"]
    plan_packs(output, root.parent / "i", capacity=4096)
    moved = root.parent / "moved"
    secret.parent.rename(moved)
    (root / "linked.png").unlink(), (root / "linked.png").symlink_to(moved / "a.png")
    index = open_index(root.parent / "i", {outside: str(moved)})
    for sample in index.pack(0).samples:
        place = Fetcher(index).record(sample).root
        for ref in (str(secret), str(moved / "a.png"), "linked.png"):
            assert opened(ref, place, index.resolve) == SECRET
        with pytest.raises(BadRecord, match="media_outside_root"):
            opened(str(root.parent / "other.png"), place, index.resolve)
