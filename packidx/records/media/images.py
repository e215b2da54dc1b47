"""Image files, wherever they are: their bytes, their sizes, and the opened image.

Sizes come from headers alone. `image_size` and `open_image` apply the EXIF orientation alike, so
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
from packidx.io.storage import unreadable
from packidx.records.conversation import MediaInfo
from packidx.records.media.paths import shortened
from packidx.records.media.references import is_opened

MAX_PIXELS = 178_956_970  # Pillow's default limit for a decompression bomb: an error beyond it
_SWAPPED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_TAIL = 64  # bytes from the end in which a JPEG has its mark: fetched with what follows in a tar
_PNG_TAIL = 1 << 13  # bytes from the end in which a PNG may have an orientation
_LATE = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type")

# Pixels only: Pillow also "opens" stubs whose size is made up, and PostScript.
_FORMATS = (
    *("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "MPO", "PPM", "DIB"),
    *("ICO", "TGA", "PCX", "SGI", "QOI"),
)

Source = str | bytes | Extent
"""A path, a URL, a file's bytes, or where they lie."""


def read_image(source: Source, label: str | None = None) -> bytes:
    """All of an image's file, from a store by one request.

    Args:
        label: how errors name it; by default the path.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        SourceError: an object store, or the tar that it is in, cannot be read.
    """
    label = label or label_of(source)
    if isinstance(source, str) and urls.is_url(source):
        with asked(source, label):
            source = storage.read(source)
    file, _ = open_file(source, label)
    with file:
        try:
            return file.read()
        except OSError as error:
            refuse_open_files(error)
            raise BadRecord("broken_media", f"{label} cannot be read: {error.strerror}") from None


def open_file(source: Source, label: str) -> tuple[IO[bytes], int]:
    """The source as a file that can seek, and its size in bytes.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``: there is nothing to read.
        SourceError: an object store, or the tar that it is in, cannot be read.
    """
    file: IO[bytes]
    if isinstance(source, bytes):
        file, nbytes = io.BytesIO(source), len(source)
    elif isinstance(source, Extent):
        small = source.nbytes <= ranges.BLOCK // 2
        file = io.BytesIO(source.peek(0, source.nbytes)) if small else source.open()
        nbytes = source.nbytes
    elif urls.is_url(source):
        file, nbytes = _open_url(source, label)
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


def _open_url(url: str, label: str) -> tuple[IO[bytes], int]:
    """An object by its first block; its size is asked for where that is not all of it."""
    with asked(url, label):
        head = storage.read_range(url, 0, ranges.BLOCK)
        if len(head) < ranges.BLOCK:
            return io.BytesIO(head), len(head)
        nbytes = storage.stat(url).nbytes
    return Extent(url, 0, nbytes, blocks=ranges.blocks_of(url, nbytes, head=head)).open(), nbytes


@contextlib.contextmanager
def asked(url: str, label: str) -> Iterator[None]:
    """Errors of a store: an object that is not there is a record's, all else is everybody's.

    Raises:
        BadRecord: ``missing_media``.
        SourceError: the store cannot be read.
    """
    try:
        yield
    except (FileNotFoundError, IsADirectoryError):
        raise BadRecord("missing_media", f"{label} does not exist") from None
    except OSError as error:
        raise unreadable(url, error) from error


def label_of(source: Source, medium: str = "an image") -> str:
    """Return how errors name a medium."""
    return repr(shortened(source)) if isinstance(source, str) else f"{medium} in the record"


def image_size(source: Source, label: str | None = None) -> tuple[int, int]:
    """(height, width) in pixels of an image file or its bytes, EXIF orientation applied.

    Only the header is read, unless the end of the file looks cut off: such an image is decoded
    once, to tell a truncated one from one that is merely unusual.

    Args:
        label: how errors name it; by default the path.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
    """
    label = label or label_of(source)
    file, nbytes = open_file(source, label)
    with file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _identify(file, label)
        try:
            _load_if_cut(image, file, nbytes)
            width, height = image.size
            # That of a TIFF has its orientation applied already.
            swapped = image.format != "TIFF" and _orientation(image) in _SWAPPED
        except Exception as error:
            raise _broken(label, error) from None
    if width < 1 or height < 1:
        raise BadRecord("broken_media", f"{label} has {height} x {width} pixels")
    return (width, height) if swapped else (height, width)


def image_info(source: Source, label: str | None = None) -> MediaInfo:
    """`image_size` as what is known of a medium."""
    return MediaInfo(*image_size(source, label))


def open_image(source: Any, label: str | None = None) -> Image.Image:
    """An image, upright (EXIF orientation applied), its pixels not decoded before they are needed.

    Args:
        label: how errors name it; by default the path.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
        SourceError: an object store cannot be read.
    """
    label = label or ("an image" if is_opened(source) else label_of(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = source if is_opened(source) else _opened_file(source, label)
            if _orientation(image) in range(2, 9):
                image = ImageOps.exif_transpose(image)
    except Exception as error:
        raise _broken(label, error) from None
    return image


def _opened_file(source: Source, label: str) -> Image.Image:
    # From memory: an image that waits to be decoded must not hold a file open.
    data = read_image(source, label)
    file = io.BytesIO(data)
    image = _identify(file, label)
    _load_if_cut(image, file, len(data))
    return image


def _identify(file: IO[bytes], label: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(file, formats=_formats())
    except Image.DecompressionBombError:
        text = f"{label} has more pixels than Pillow opens (Image.MAX_IMAGE_PIXELS)"
        raise BadRecord("media_too_large", text) from None
    except UnidentifiedImageError:
        raise BadRecord("broken_media", f"{label} is not an image of a known format") from None
    except Exception as error:
        raise _broken(label, error) from None


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _broken(label: str, error: Exception) -> PackidxError:
    if isinstance(error, PackidxError):
        return error
    refuse_open_files(error)
    text = re.sub(r"<[^>]* at 0x[0-9a-f]+>", "file", str(error)) or type(error).__name__
    return BadRecord("broken_media", f"{label} cannot be decoded: {shortened(text)}")


def _orientation(image: Image.Image) -> int:
    """The EXIF (or XMP) orientation, 1 to 8; 1 where there is none or it cannot be read."""
    try:
        # The base class's: PngImageFile.getexif decodes the pixels to look for late chunks.
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _load_if_cut(image: Image.Image, file: IO[bytes], nbytes: int) -> None:
    """Decode an image whose end looks cut off, or whose orientation may stand after its pixels."""
    at = file.tell()
    ends_well = _ends_well(image.format, file, nbytes)
    file.seek(at)
    if not ends_well:
        image.load()


def _ends_well(form: str | None, file: IO[bytes], nbytes: int) -> bool:
    """Return whether a file certainly has all its pixels, and no orientation after them.

    It is left anywhere. Kinds that have no mark at their end are rare, or quick to decode.
    """
    if form == "WEBP":
        file.seek(0)
        return not is_cut_riff(file.read(8), nbytes)
    size = _PNG_TAIL if form == "PNG" else _TAIL
    file.seek(max(0, nbytes - size))
    tail = file.read(size)
    if form in ("JPEG", "MPO", "JPEG2000"):
        return tail.rstrip(b"\0\r\n").endswith(b"\xff\xd9")
    if form == "PNG":
        behind = tail.rpartition(b"IDAT")[2]
        return b"IEND" in tail[-12:] and not any(word in behind for word in _LATE)
    return False


def is_cut_riff(head: bytes, nbytes: int) -> bool:
    """Return whether a RIFF file (a WebP, a WAV) of so many bytes states that it has more."""
    return int.from_bytes(head[4:8], "little") + 8 > nbytes
