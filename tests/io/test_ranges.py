"""Windows onto files, and what is read of an image to know its size."""

from __future__ import annotations

import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from packidx.errors import BadRecord, SourceError
from packidx.io import ranges, storage
from packidx.io.ranges import Extent, ReadAhead
from packidx.records.media.image_headers import webp_size
from packidx.records.media.images import image_size, open_image

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("window") / "x"
    place.write_bytes(DATA)
    return str(place)


class Reads:
    """Places that are read of files while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[int, int]] = []
        read = storage.read_range

        def noted(path: str, offset: int, nbytes: int) -> bytes:
            self.places.append((offset, nbytes))
            return read(path, offset, nbytes)

        monkeypatch.setattr(storage, "read_range", noted)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.places)


@given(
    st.lists(st.tuples(st.integers(0, len(DATA) + 9), st.integers(0, 3000)), max_size=20),
    st.sampled_from([1, 100, 3000]),
    st.sampled_from([0, 50, 5000]),
    st.sampled_from([0, 300]),
    st.sampled_from([len(DATA), 5000]),
)
def test_a_window_gives_the_files_bytes(
    path: str, places: list[tuple[int, int]], block: int, gap: int, head: int, end: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_KEPT", 2000)
        patch.setattr(ranges, "_MOST", 700)
        patch.setattr(ranges, "_LEAD", 20)
        window = ReadAhead(path, end, block, gap, DATA[:head])
        for offset, nbytes in places:
            expected = DATA[offset : max(offset, min(end, offset + nbytes))]
            assert window.read(offset, nbytes) == expected
        assert pickle.loads(pickle.dumps(window)).read(0, 9) == DATA[:9]


def test_what_was_read_is_not_read_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_LEAD", 10)
    reads = Reads(monkeypatch)
    window = ReadAhead(path, len(DATA), 500, 200)
    window.read(0, 100)
    window.read(90, 300)
    assert reads.places == [(0, 500)]
    window.read(600, 10)  # near: read on to, twice as much
    assert reads.places[1:] == [(500, 1000)]
    window.read(5000, 10)  # far: a small block that begins a little before
    assert reads.places[2:] == [(4990, 500)]
    assert window.read(4992, 8) == DATA[4992:5000]
    window.read(300, 1100)
    assert len(reads.places) == 3


def test_an_extent_is_a_file(path: str) -> None:
    extent = Extent(ReadAhead(path, len(DATA), 64, 64), 1000, 500)
    with extent.open() as file:
        model = io.BytesIO(DATA[1000:1500])
        for offset, whence, size in [(0, 0, 9), (-20, 2, 99), (30, 0, 300), (-50, 1, -1)]:
            assert file.seek(offset, whence) == model.seek(offset, whence)
            assert file.read(size) == model.read(size)
            assert file.tell() == model.tell()
    assert extent.read() == extent.peek() == DATA[1000:1500]


def test_a_file_that_cannot_be_read_is_no_bad_image(tmp_path: Path) -> None:
    """It concerns every sample in it, and may be transient."""
    extent = Extent(ReadAhead(str(tmp_path / "none"), 10**6), 0, 10**6)
    for call in (image_size, open_image, lambda one: one.read()):
        with pytest.raises(SourceError, match="cannot read .*none"):
            call(extent)


# -- images by their headers -----------------------------------------------------------------------

EXIF = Image.Exif()
EXIF[0x0112] = 6


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
    found, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def rewritten(size: int, late: bytes = b"") -> bytes:
    """A PNG whose pixels are in chunks of a size, and `late` behind them."""
    found = chunks(encoded("PNG"))
    pixels = b"".join(body for kind, body in found if kind == b"IDAT")
    head = b"".join(chunk(kind, body) for kind, body in found[:1])
    body = b"".join(chunk(b"IDAT", pixels[at : at + size]) for at in range(0, len(pixels), size))
    return b"\x89PNG\r\n\x1a\n" + head + body + late + chunk(b"IEND", b"")


def exif_png() -> bytes:
    info = PngImagePlugin.PngInfo()
    return encoded("PNG", exif=EXIF, pnginfo=info)


LATE = chunk(b"eXIf", EXIF.tobytes().removeprefix(b"Exif\0\0"))
IMAGES = {
    "JPEG": (encoded("JPEG", quality=95), (300, 333), 3),
    "JPEG, turned": (encoded("JPEG", quality=95, exif=EXIF), (333, 300), 3),
    "PNG": (encoded("PNG"), (300, 333), 4),
    "PNG, turned": (exif_png(), (333, 300), 4),
    "PNG, one chunk": (rewritten(1 << 30), (300, 333), 3),
    "PNG, many chunks": (rewritten(8192), (300, 333), 3),
    "PNG, a chunk filled up": (rewritten(len(encoded("PNG")) // 100 * 10), (300, 333), 4),
    "WebP": (encoded("WEBP", quality=100), (300, 333), 1),
    "WebP, lossless": (encoded("WEBP", lossless=True), (300, 333), 1),
    "WebP, with a profile": (encoded("WEBP", quality=100, icc_profile=b"x" * 99), (300, 333), 1),
    "BMP": (encoded("BMP"), (300, 333), 99),
    "TIFF": (encoded("TIFF"), (300, 333), 4),
}


@pytest.mark.parametrize("name", IMAGES)
def test_sizes_from_headers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as of the whole file, by few and small reads."""
    data, size, requests = IMAGES[name]
    upright = open_image(data)
    assert (upright.height, upright.width) == size
    (tmp_path / "x").write_bytes(b"." * 77 + data)
    reads = Reads(monkeypatch)
    window = ReadAhead(str(tmp_path / "x"), 77 + len(data), gap=1 << 12)
    assert image_size(Extent(window, 77, len(data))) == size
    assert len(reads.places) <= requests
    if name != "BMP":
        assert max(nbytes for _, nbytes in reads.places) <= 2 * ranges.BLOCK
    (tmp_path / "alone").write_bytes(data)
    assert image_size(str(tmp_path / "alone")) == image_size(data) == size


@pytest.mark.parametrize("size", [8192, 1 << 30, 50_000])
def test_an_orientation_behind_the_pixels_is_seen(size: int) -> None:
    assert image_size(rewritten(size, LATE)) == (333, 300)


def test_an_orientation_behind_a_webps_pixels_is_seen() -> None:
    data = encoded("WEBP", quality=100, exif=EXIF)
    assert webp_size(io.BytesIO(data), len(data)) is None
    assert image_size(data) == (333, 300)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("lost", [1, 13, 3000, 80_000])
def test_images_that_are_cut_are_known(name: str, lost: int) -> None:
    """Those that cannot be decoded: a PNG needs no IEND, a BMP no padding."""
    data, size, _ = IMAGES[name]
    try:
        Image.open(io.BytesIO(data[:-lost])).load()
    except Exception:
        with pytest.raises(BadRecord) as caught:
            image_size(data[:-lost])
        assert caught.value.reason == "broken_media"
    else:
        assert lost < 100
        assert image_size(data[:-lost]) == size


@given(st.integers(0, 40), st.integers(0, 255))
def test_a_damaged_webp_is_no_other_than_pillow_says(at: int, value: int) -> None:
    """Whatever a byte of its header is: the size that Pillow says, or no answer."""
    for kind in ("WebP", "WebP, lossless", "WebP, with a profile"):
        data = bytearray(IMAGES[kind][0])
        data[at] = value
        found = webp_size(io.BytesIO(bytes(data)), len(data))
        if found is not None:
            try:
                image = Image.open(io.BytesIO(bytes(data)))
            except Exception:
                continue  # it cannot be decoded, which training will say
            assert found == (image.height, image.width)
