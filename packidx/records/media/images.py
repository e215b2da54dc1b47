"""Image files, wherever they are: their bytes, their sizes, and the opened image.

Sizes come from headers alone. `image_info` and `open_image` apply the EXIF orientation alike, so
that a planned size is the size that training sees. Of an image in an object store, or inside a tar,
a block from its beginning is read, and its end; it is opened from one request for all of it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import warnings
from collections.abc import Iterator
from typing import IO, Any

from PIL import Image, ImageOps, UnidentifiedImageError

from packidx.errors import BadRecord, PackidxError
from packidx.io import ranges, storage, urls
from packidx.io.files import refuse_open_files
from packidx.io.ranges import Extent
from packidx.io.storage import unreadable_error
from packidx.records.conversation import MediaInfo
from packidx.records.media.paths import clip_text
from packidx.records.media.references import opened_kind

MAX_PIXELS = 178_956_970  # Pillow's default limit for a decompression bomb: an error beyond it
_SWAPPED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_TAIL = 64  # bytes from the end in which a JPEG has its mark: fetched with what follows in a tar

# Pixels only: Pillow also "opens" stubs whose size is made up, and PostScript.
_FORMATS = (
    *("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "MPO", "PPM", "DIB"),
    *("ICO", "TGA", "PCX", "SGI", "QOI"),
)

Source = str | bytes | Extent
"""A path, a URL, a file's bytes, or where they lie."""


def read_image(source: Source, label: str | None = None) -> bytes:
    """All of an image's file, from a store by one request. Raise ``missing_media`` or
    ``broken_media``, or a SourceError if a store, or the tar that it is in, cannot be read."""
    label = label or label_of(source)
    if isinstance(source, str) and urls.is_url(source):
        with name_store_errors(source, label):
            source = storage.read(source)
    file, _ = open_file(source, label)
    with file:
        try:
            return file.read()
        except OSError as error:
            refuse_open_files(error)
            raise BadRecord("broken_media", f"{label} cannot be read: {error.strerror}") from None


def open_file(source: Source, label: str) -> tuple[IO[bytes], int]:
    """The source as a file that can seek, and its size in bytes; errors as of `read_image`."""
    file: IO[bytes]
    if isinstance(source, bytes):
        file, nbytes = io.BytesIO(source), len(source)
    elif isinstance(source, Extent):
        small = source.nbytes <= ranges.BLOCK // 2
        file = io.BytesIO(source.peek(0, source.nbytes)) if small else source.open()
        nbytes = source.nbytes
    elif urls.is_url(source):
        with name_store_errors(source, label):
            head = storage.read_range(source, 0, ranges.BLOCK)
            nbytes = storage.stat(source).nbytes if len(head) == ranges.BLOCK else len(head)
        blocks = ranges.blocks_of(source, nbytes, head=head)
        whole = nbytes < ranges.BLOCK
        file = io.BytesIO(head) if whole else Extent(source, 0, nbytes, blocks=blocks).open()
    else:
        try:
            file = open(source, "rb", opener=storage.open_regular)  # noqa: SIM115, the caller's
            nbytes = os.fstat(file.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise BadRecord("missing_media", f"{label} does not exist") from None
        except OSError as error:
            refuse_open_files(error)
            reason = "missing_media" if error.errno == errno.ENAMETOOLONG else "broken_media"
            raise BadRecord(reason, f"{label} cannot be read: {error.strerror}") from None
    if not nbytes:
        file.close()
        raise BadRecord("broken_media", f"{label} is empty")
    return file, nbytes


@contextlib.contextmanager
def name_store_errors(url: str, label: str) -> Iterator[None]:
    """Errors of a store: an object that is not there is ``missing_media``, any other a
    SourceError."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError):
        raise BadRecord("missing_media", f"{label} does not exist") from None
    except OSError as error:
        raise unreadable_error(url, error) from error


def label_of(source: Source, medium: str = "an image") -> str:
    """Return how errors name a medium."""
    return repr(clip_text(source)) if isinstance(source, str) else f"{medium} in the record"


def image_info(source: Source, label: str | None = None) -> MediaInfo:
    """Size in pixels of an image file or its bytes, EXIF orientation applied.

    Only the header is read, unless the end of the file looks cut off: such an image is decoded
    once, to tell a truncated one from one that is merely unusual. Raise ``missing_media``,
    ``broken_media`` or ``media_too_large``; errors name the image by `label`, or its path.
    """
    label = label or label_of(source)
    file, nbytes = open_file(source, label)
    with file, _broken_media(label):
        image = _open_identified(file, nbytes, label)
        width, height = image.size
        # That of a TIFF has its orientation applied already.
        swapped = image.format != "TIFF" and _read_orientation(image) in _SWAPPED
    if width < 1 or height < 1:
        raise BadRecord("broken_media", f"{label} has {height} x {width} pixels")
    return MediaInfo(width, height) if swapped else MediaInfo(height, width)


def open_image(source: Any, label: str | None = None) -> Image.Image:
    """An image, upright (EXIF orientation applied), its pixels not decoded before they are needed.
    Errors are those of `image_info`, or a SourceError if an object store cannot be read."""
    is_opened = opened_kind(source) is not None
    label = label or ("an image" if is_opened else label_of(source))
    with _broken_media(label):
        image: Image.Image = source
        if not is_opened:
            # From memory: an image that waits to be decoded must not hold a file open.
            data = read_image(source, label)
            image = _open_identified(io.BytesIO(data), len(data), label)
        if _read_orientation(image) in range(2, 9):
            image = ImageOps.exif_transpose(image)
    return image


@contextlib.contextmanager
def _broken_media(label: str) -> Iterator[None]:
    """Silence Pillow's warnings in the block; its errors become a `BadRecord`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except PackidxError:
        raise
    except Image.DecompressionBombError:
        text = f"{label} has more pixels than Pillow opens (Image.MAX_IMAGE_PIXELS)"
        raise BadRecord("media_too_large", text) from None
    except UnidentifiedImageError:
        raise BadRecord("broken_media", f"{label} is not an image of a known format") from None
    except Exception as error:  # Pillow's decoders raise many kinds
        refuse_open_files(error)
        text = re.sub(r"<[^>]* at 0x[0-9a-f]+>", "file", str(error)) or type(error).__name__
        raise BadRecord("broken_media", f"{label} cannot be decoded: {clip_text(text)}") from None


def _open_identified(file: IO[bytes], nbytes: int, label: str) -> Image.Image:
    """An image by its header; decoded if its end looks cut off."""
    image = Image.open(file, formats=_known_formats())
    at = file.tell()
    ends_well = _ends_well(image.format, file, nbytes)
    file.seek(at)
    if not ends_well or image.format == "TIFF":  # whose orientation Pillow 11 applies as it decodes
        image.load()
    return image


@functools.cache
def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _read_orientation(image: Image.Image) -> int:
    """The EXIF (or XMP) orientation, 1 to 8; 1 where there is none or it cannot be read."""
    try:
        # The base class's: PngImageFile.getexif decodes the pixels to look for late chunks.
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _ends_well(form: str | None, file: IO[bytes], nbytes: int) -> bool:
    """Return True if a file has the end of its kind, or its kind has none. It is left anywhere."""
    if form == "WEBP":
        file.seek(4)
        return int.from_bytes(file.read(4), "little") + 8 <= nbytes
    file.seek(max(0, nbytes - _TAIL))
    tail = file.read(_TAIL)
    if form in ("JPEG", "MPO", "JPEG2000"):
        return tail.rstrip(b"\0\r\n").endswith(b"\xff\xd9")
    return form != "PNG" or b"IEND" in tail[-12:]
