"""Sizes of images from their headers, by few and small reads: what Pillow says of whole files."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from reading import Reads

from packidx.errors import SourceError
from packidx.io import ranges
from packidx.io.ranges import Extent
from packidx.records.media.images import image_info, open_image

EXIF = Image.Exif()
EXIF[0x0112] = 6


def image_size(source: Any) -> tuple[int, int]:
    info = image_info(source)
    return info.height, info.width


def encoded(kind: str, **options: Any) -> bytes:
    """A large image of a kind, 300 x 333 pixels."""
    noise = np.random.default_rng(1).integers(0, 256, (300, 333, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(noise).save(sink, kind, **options)
    assert len(sink.getvalue()) > 1.2 * ranges.BLOCK
    return sink.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    listed, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        listed.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return listed


def rewritten(size: int, late: bytes = b"") -> bytes:
    """A PNG whose pixels are in chunks of a size, and `late` behind them."""
    written = chunks(encoded("PNG"))
    pixels = b"".join(body for kind, body in written if kind == b"IDAT")
    head = b"".join(chunk(kind, body) for kind, body in written[:1])
    body = b"".join(chunk(b"IDAT", pixels[at : at + size]) for at in range(0, len(pixels), size))
    return b"\x89PNG\r\n\x1a\n" + head + body + late + chunk(b"IEND", b"")


def exif_png() -> bytes:
    info = PngImagePlugin.PngInfo()
    return encoded("PNG", exif=EXIF, pnginfo=info)


IMAGES = {
    "JPEG": (encoded("JPEG", quality=95), (300, 333), 3),
    "JPEG, turned": (encoded("JPEG", quality=95, exif=EXIF), (333, 300), 3),
    "PNG": (encoded("PNG"), (300, 333), 4),
    "PNG, turned": (exif_png(), (333, 300), 4),
    "PNG, one chunk": (rewritten(1 << 30), (300, 333), 3),
    "PNG, many chunks": (rewritten(8192), (300, 333), 3),
    "PNG, a chunk filled up": (rewritten(len(encoded("PNG")) // 100 * 10), (300, 333), 4),
    "WebP": (encoded("WEBP", quality=100), (300, 333), 2),
    "WebP, lossless": (encoded("WEBP", lossless=True), (300, 333), 2),
    "WebP, with a profile": (encoded("WEBP", quality=100, icc_profile=b"x" * 99), (300, 333), 2),
    "BMP": (encoded("BMP"), (300, 333), 3),
    "TIFF": (encoded("TIFF"), (300, 333), 6),
}


@pytest.mark.parametrize("name", IMAGES)
def test_sizes_from_headers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as of the whole file, by few and small reads."""
    data, size, requests = IMAGES[name]
    upright = open_image(data)
    assert (upright.height, upright.width) == size
    (tmp_path / "x").write_bytes(b"." * 77 + data)
    reads = Reads(monkeypatch)
    path, end = str(tmp_path / "x"), 77 + len(data)
    assert image_size(Extent(path, 77, len(data), blocks=ranges.blocks_of(path, end))) == size
    assert len(reads.places) <= requests
    if name[:4] != "WebP":  # which Pillow reads whole
        assert max(nbytes for _, nbytes in reads.places) <= 2 * ranges.BLOCK
    (tmp_path / "alone").write_bytes(data)
    assert image_size(str(tmp_path / "alone")) == image_size(data) == size


def test_a_file_that_cannot_be_read_is_no_bad_image(tmp_path: Path) -> None:
    """It concerns every sample in it, and may be transient."""
    extent = Extent(str(tmp_path / "none"), 0, 10**6)
    for call in (image_size, open_image):
        with pytest.raises(SourceError, match="cannot read .*none"):
            call(extent)
