"""Media: where references lead, sizes from headers, orientation, and broken files."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from packidx.errors import BadRecord
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.images import image_info, open_image
from packidx.records.media.opener import (
    forget_media,
    media_info,
    resolve_reference,
)
from packidx.records.media.paths import MediaRoot

ORIENTED_FORMATS = ["PNG", "JPEG", "WEBP", "TIFF"]


def encoded(kind: str = "PNG", size: tuple[int, int] = (36, 20), orientation: int = 0) -> bytes:
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, exif=exif)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its pixels do not have."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


def image_size(source: bytes | str) -> tuple[int, int]:
    info = image_info(source)
    return info.height, info.width


def refused(function: Any, *args: Any, **kwargs: Any) -> BadRecord:
    with pytest.raises(BadRecord) as caught:
        function(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("kind", ORIENTED_FORMATS)
def test_orientation_is_applied_alike(kind: str, orientation: int) -> None:
    data = encoded(kind, orientation=orientation)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    opened = open_image(data)
    assert image_size(data) == (opened.height, opened.width) == (expected.height, expected.width)
    assert image_size(data) == ((36, 20) if orientation >= 5 else (20, 36))
    assert np.array_equal(np.asarray(opened), np.asarray(expected))
    again = ImageOps.exif_transpose(opened)  # a user's own encode may do it once more
    assert again.size == opened.size


@pytest.mark.parametrize("kind", [b"eXIf", b"iTXt"])
def test_orientation_of_a_png(kind: bytes) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'
    extra = chunk(kind, exif.tobytes()[6:] if kind == b"eXIf" else xmp)
    data = encoded()
    data = data[:33] + extra + data[33:]
    assert image_size(data) == (36, 20)
    assert open_image(data).size == (20, 36)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("keep", [0.5, 0.95])
def test_truncated_images_are_broken(kind: str, keep: float) -> None:
    data = encoded(kind, (48, 40))
    assert image_size(data) == (40, 48)
    assert refused(image_size, data[: int(len(data) * keep)]).reason == "broken_media"


def test_unusual_ends_are_not_broken() -> None:
    assert image_size(encoded() + b"trailing bytes") == (20, 36)
    assert image_size(encoded("JPEG") + b"trailing bytes") == (20, 36)
    assert image_size(encoded("JPEG") + b"\0\0") == (20, 36)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "broken_media"),
        (b"not an image", "broken_media"),
        (png_of_size(0, 5), "broken_media"),
        (png_of_size(5, 0), "broken_media"),
        (png_of_size(100_000, 100_000), "media_too_large"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "broken_media"),
    ],
)
def test_bad_image_bytes(data: bytes, reason: str, recwarn: pytest.WarningsRecorder) -> None:
    assert refused(image_size, data).reason == reason
    assert refused(open_image, data).reason == reason
    assert not recwarn.list


def test_large_images_give_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert image_size(png_of_size(12_000, 10_000)) == (10_000, 12_000)
    assert not recwarn.list


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "empty.png", "folder.png"):
        assert refused(image_size, str(tmp_path / name)).reason == "broken_media"
    for name in ("none.png", "empty.png/x.png", "x" * 300, "a\0b"):
        assert refused(image_size, str(tmp_path / name)).reason == "missing_media"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A media root with an image, and a folder outside it that links lead to."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (tmp_path / "root2").mkdir()
    for path in (root / "a.png", root / "in" / "b.png", tmp_path / "root2" / "secret.png"):
        path.write_bytes(encoded())
    (root / "link.png").symlink_to(tmp_path / "root2" / "secret.png")
    (root / "linked").symlink_to(tmp_path / "root2")
    (root / "inner.png").symlink_to(root / "in" / "b.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    return root


@pytest.mark.parametrize("ref", ["a.png", "in/b.png", "in/../a.png", "./a.png", "inner.png"])
def test_paths_inside_the_root(root: Path, ref: str) -> None:
    for confined in (True, False):
        for spelled in (ref, f"{root}/{ref}", f"file://{root}/{ref}"):
            path = resolve_reference(spelled, MediaRoot(str(root), confined))
            assert os.path.samefile(path, root / ref)


@pytest.mark.parametrize(
    "ref", ["../root2/secret.png", "in/../../root2/secret.png", "link.png", "linked/secret.png"]
)
def test_paths_that_leave_the_root(root: Path, ref: str) -> None:
    assert (
        refused(resolve_reference, ref, MediaRoot(str(root), True)).reason == "media_outside_root"
    )
    absolute = f"{root}/{ref}"
    assert (
        refused(resolve_reference, absolute, MediaRoot(str(root), True)).reason
        == "media_outside_root"
    )
    place = root.parent / "root2"
    for spelled, option in ((ref, "--remote-media"), (absolute, "--media-root")):
        refusal = refused(resolve_reference, spelled, MediaRoot(str(root)))
        assert refusal.reason == "media_outside_root"
        assert f"allow it with {option} {place} if the data is trusted" in refusal.detail
        allowed = MediaRoot(str(root), elsewhere=(str(place),))
        assert os.path.exists(resolve_reference(spelled, allowed))


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("https://example.org/a.png", "media_remote"),
        ("nowhere://bucket/a.png", "media_remote"),
        ("s3://key:secret@bucket/a.png", "media_remote"),
        ("data:image/png;base64", "broken_media"),
        ("data:image/png;base64,%%%", "broken_media"),
        ("", "missing_media"),
        ("a\0b.png", "missing_media"),
    ],
)
def test_references_that_lead_nowhere(root: Path, ref: str, reason: str) -> None:
    for confined in (True, False):
        assert refused(resolve_reference, ref, MediaRoot(str(root), confined)).reason == reason


def test_what_is_known_of_an_image(root: Path) -> None:
    uri = "data:image/png;base64," + base64.b64encode(encoded()).decode()
    for ref in ("a.png", uri, encoded()):
        assert media_info(Media("image", ref), MediaRoot(str(root), True)) == MediaInfo(20, 36)
    assert media_info(
        Media("image", "nope", {"height": 7, "width": 8}), MediaRoot(str(root), True)
    ) == MediaInfo(7, 8)
    huge = Media("image", "nope", {"height": 100_000, "width": 100_000})
    assert refused(media_info, huge, MediaRoot(str(root), True)).reason == "media_too_large"
    video = Media("video", "none.mp4")
    assert refused(media_info, video, MediaRoot(str(root), True)).reason == "missing_media"
    loop = Media("image", "loop.png")
    reason = refused(media_info, loop, MediaRoot(str(root), False)).reason
    assert reason in ("broken_media", "missing_media")


@pytest.mark.parametrize("root", ["", ".", "./", "sub/..", "sub"])
def test_relative_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """A shard given by its bare name has its images beside it, and none above."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    forget_media()
    assert os.fspath(resolve_reference("a.png", MediaRoot(root))) == os.path.join(root, "a.png")
    with pytest.raises(BadRecord, match="not inside the media root"):
        resolve_reference("../a.png", MediaRoot(root, False))
