"""Images in LMDB databases: ``path.lmdb::key``."""

from __future__ import annotations

import io
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image
from reading import open_media

from packidx.errors import BadRecord, MissingExtraError
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media import opener
from packidx.records.media.opener import (
    forget_media,
    media_info,
    resolve_reference,
)
from packidx.records.media.paths import MediaRoot
from packidx.records.read import parse_record


def png(width: int = 30, height: int = 20, orientation: int = 0) -> bytes:
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 7, np.uint8)).save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def fill(path: Path, **values: bytes) -> None:
    with (
        lmdb.open(str(path), subdir=path.suffix != ".mdb", map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key.encode(), value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A media root with a database that is a folder, one that is a file, and links out of it."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    outside = tmp_path / "outside.lmdb"
    values = {"0001": png(), "a::b/é.png": png(40, 10, 6), "cut": png()[:40], "none": b""}
    fill(root / "in" / "x.lmdb", **values)
    fill(root / "one.mdb", **values)
    fill(outside, **values)
    (root / "link.lmdb").symlink_to(outside)
    (root / "inner.lmdb").mkdir()
    (root / "inner.lmdb" / "data.mdb").symlink_to(outside / "data.mdb")
    (root / "broken.lmdb").mkdir()
    (root / "broken.lmdb" / "data.mdb").write_bytes(b"no database" * 1000)
    (root / "empty.lmdb").mkdir()
    (root / "odd::name.png").write_bytes(png())
    forget_media()
    return root


@pytest.mark.parametrize("place", ["in/x.lmdb", "one.mdb"])
def test_sizes_and_images(root: Path, place: str) -> None:
    for spelled in (place, f"{root}/{place}", f"file://{root}/{place}"):
        for confined in (True, False):
            first = Media("image", f"{spelled}::0001")
            assert media_info(first, MediaRoot(str(root), confined)) == MediaInfo(20, 30)
            turned = Media("image", f"{spelled}::a::b/é.png")
            assert media_info(turned, MediaRoot(str(root), confined)) == MediaInfo(40, 10)
    record = {"messages": [{"role": "user", "content": "<image><image>"}]}
    record["images"] = [f"{place}::0001", {"path": f"{root}/{place}::a::b/é.png"}]  # type: ignore[assignment]
    first, second = parse_record(open_media(record, MediaRoot(str(root), True))).media
    assert (first.ref.size, second.ref.size) == ((30, 20), (10, 40))
    assert np.asarray(first.ref)[0, 0, 0] == 7


@pytest.mark.parametrize(
    ("ref", "confined", "reason"),
    [
        ("in/x.lmdb::0002", True, "missing_media"),
        ("in/x.lmdb::", True, "missing_media"),
        ("in/x.lmdb::" + "k" * 600, True, "missing_media"),
        ("in/x.lmdb::\ud800", True, "missing_media"),
        ("in/x.lmdb::cut", True, "broken_media"),
        ("in/x.lmdb::none", True, "broken_media"),
        ("none.lmdb::0001", True, "missing_media"),
        ("empty.lmdb::0001", True, "missing_media"),
        ("broken.lmdb::0001", True, "broken_media"),
        ("../outside.lmdb::0001", True, "media_outside_root"),
        ("../outside.lmdb::0001", False, "media_outside_root"),
        ("link.lmdb::0001", True, "media_outside_root"),
        ("inner.lmdb::0001", True, "media_outside_root"),
        ("https://host/x.lmdb::0001", False, "media_remote"),
        ("s3://bucket/x.lmdb::0001", True, "media_remote"),
    ],
)
def test_references_that_lead_nowhere(root: Path, ref: str, confined: bool, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(BadRecord) as caught:
            media_info(Media("image", ref), MediaRoot(str(root), confined))
        assert caught.value.reason == reason
        assert str(root) not in caught.value.detail
    if reason == "media_outside_root":
        with pytest.raises(BadRecord, match="media_outside_root"):
            resolve_reference(ref, MediaRoot(str(root), confined))


def test_links_are_followed_to_what_is_allowed(root: Path) -> None:
    for name in ("link.lmdb", "inner.lmdb"):
        media = Media("image", f"{root}/{name}::0001")
        with pytest.raises(BadRecord, match=f"--media-root {root.parent}/outside.lmdb "):
            media_info(media, MediaRoot(str(root)))
        assert media_info(
            media, MediaRoot(str(root), elsewhere=(f"{root.parent}/outside.lmdb",))
        ) == MediaInfo(20, 30)


def size_in(root: str) -> tuple[int, int]:
    opener._read_info.cache_clear()
    info = media_info(Media("image", "in/x.lmdb::0001"), MediaRoot(root))
    return info.height, info.width


def sizes_in_child(root: str, queue: Any) -> None:
    queue.put([size_in(root) for _ in range(3)])


def test_forked_processes_open_their_own(root: Path) -> None:
    assert size_in(str(root)) == (20, 30)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=sizes_in_child, args=(str(root), queue)) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=30) for _ in children] == [[(20, 30)] * 3] * 2
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert size_in(str(root)) == (20, 30)


def test_without_the_package(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match=r'pip install "packidx\[lmdb\]"'):
        media_info(Media("image", "in/x.lmdb::0001"), MediaRoot(str(root), True))
