"""Image files: their sizes, and the opened image.

Sizes come from headers alone. `image_size` and `open_image` apply the EXIF orientation alike, so
that a planned size is the size that training sees. Of an image in an object store, or inside a tar,
a block from its beginning is read, and its end; it is opened from one request for all of it.
"""

from __future__ import annotations

import functools
import io
import re
import warnings
from typing import IO, Any

import PIL
from PIL import Image, ImageOps, UnidentifiedImageError

from packidx.errors import BadRecord, PackidxError
from packidx.io import ranges
from packidx.records.media.image_files import Source, content_of, label_of, open_file
from packidx.records.media.paths import shortened
from packidx.records.media.references import is_opened

MAX_PIXELS = 178_956_970  # Pillow's default limit for a decompression bomb: an error beyond it
_SWAPPED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT = 0x0100, 0x0101

# Pixels only: Pillow also "opens" stubs whose size is made up, and PostScript.
_FORMATS = (
    *("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "MPO", "PPM", "DIB"),
    *("ICO", "TGA", "PCX", "SGI", "QOI"),
)


def image_size(source: Source) -> tuple[int, int]:
    """(height, width) in pixels of an image file or its bytes, EXIF orientation applied.

    Only the header is read, unless the end of the file looks cut off: such an image is decoded
    once, to tell a truncated one from one that is merely unusual.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
    """
    return labelled_size(source, label_of(source))


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
    data = content_of(source, label)
    file = io.BytesIO(data)
    image = _identify(file, label)
    _load_if_cut(image, file, len(data))
    return image


def labelled_size(source: Source, label: str) -> tuple[int, int]:
    """`image_size`, with errors that call the image `label`."""
    file, nbytes = open_file(source, label)
    with file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if nbytes > ranges.BLOCK and (size := webp_size(file, nbytes)) is not None:
            return size
        image = _identify(file, label)
        try:
            _load_if_cut(image, file, nbytes)
            width, height = _stored_size(image)
            swapped = _orientation(image) in _SWAPPED
        except Exception as error:
            raise _broken(label, error) from None
    if width < 1 or height < 1:
        raise BadRecord("broken_media", f"{label} has {height} x {width} pixels")
    return (width, height) if swapped else (height, width)


def _identify(file: IO[bytes], label: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(file, formats=_formats())
    except Image.DecompressionBombError:
        text = f"{label} has more pixels than Pillow opens (Image.MAX_IMAGE_PIXELS)"
        raise BadRecord("media_too_large", text) from None
    except UnidentifiedImageError:
        file.seek(4)
        if "AVIF" not in _formats() and file.read(8) in (b"ftypavif", b"ftypavis"):
            text = f"{label} is AVIF, which Pillow {PIL.__version__} cannot read and 11.3 can"
            raise BadRecord("unsupported_media", text) from None
        raise BadRecord("broken_media", f"{label} is no image of a known format") from None
    except Exception as error:
        raise _broken(label, error) from None


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _broken(label: str, error: Exception) -> PackidxError:
    if isinstance(error, PackidxError):
        return error
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


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) as stored, before any orientation; TIFF's `size` has it applied already."""
    tags = getattr(image, "tag_v2", None)
    if image.format == "TIFF" and tags is not None:
        return int(tags[_TIFF_WIDTH]), int(tags[_TIFF_HEIGHT])
    return image.size


def _load_if_cut(image: Image.Image, file: IO[bytes], nbytes: int) -> None:
    """Decode an image whose end looks cut off, or whose orientation may stand after its pixels."""
    at = file.tell()
    ends_well = is_whole(image, file, nbytes)
    file.seek(at)
    if ends_well:
        return
    if image.format == "TIFF":  # decoding would turn it upright, which `_stored_size` knows not of
        image = Image.open(file, formats=("TIFF",))
    image.load()


_TAIL = 64
_TIFF_RANGES = ((0x0111, 0x0117), (0x0144, 0x0145))  # of strips, of tiles: offsets, sizes
_LATE_CHUNKS = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")  # may hold an orientation
_WEBP_HEAD = 30
_WEBP_PIXELS = 1 << 27  # of more, Pillow says whether they are too many
_WEBP_ODD = 0x0E  # flags of a VP8X chunk: EXIF and XMP, which may turn it, and animation


def is_whole(image: Image.Image, file: IO[bytes], nbytes: int) -> bool:
    """Whether a file certainly ends as it should, with no orientation after its pixels.

    Args:
        file: what it was opened from; it is left anywhere.
    """
    if image.format == "PNG":
        return _png_is_plain(file, nbytes)
    if image.format in ("JPEG", "MPO", "JPEG2000"):
        end = _read_at(file, max(0, nbytes - _TAIL), _TAIL)
        return end.rstrip(b"\0\r\n").endswith(b"\xff\xd9")
    if image.format == "WEBP":
        return int.from_bytes(_read_at(file, 4, 4), "little") + 8 <= nbytes
    if image.format == "AVIF":
        return _boxes_are_whole(file, nbytes)
    if image.format == "TIFF":
        return _tiff_is_whole(image, nbytes)
    return False  # kinds that are rare, or quick to decode


def webp_size(file: IO[bytes], nbytes: int) -> tuple[int, int] | None:
    """(height, width) of a WebP without orientation, which Pillow would read whole to say.

    None for any other file, which is then where it was: at its beginning. Format: RFC 9649.
    """
    head = _read_at(file, 0, _WEBP_HEAD)
    file.seek(0)
    if len(head) < _WEBP_HEAD or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    size = int.from_bytes(head[16:20], "little")
    is_one_chunk = 20 + size + size % 2 == nbytes
    if int.from_bytes(head[4:8], "little") + 8 != nbytes:
        return None
    if head[12:16] == b"VP8 " and is_one_chunk:
        sides = _vp8_size(head[20:], size)
    elif head[12:16] == b"VP8L" and is_one_chunk:
        sides = _vp8l_size(head[20:])
    elif head[12:16] == b"VP8X" and not head[20] & _WEBP_ODD:
        sides = 1 + int.from_bytes(head[27:30], "little"), 1 + int.from_bytes(head[24:27], "little")
    else:
        return None
    if sides is None or not 0 < sides[0] * sides[1] <= _WEBP_PIXELS:
        return None
    return sides


def _vp8_size(frame: bytes, size: int) -> tuple[int, int] | None:
    """Of a lossy key frame (RFC 6386, 9.1)."""
    tag = int.from_bytes(frame[:3], "little")
    if tag & 1 or tag >> 5 >= size or frame[3:6] != b"\x9d\x01\x2a":
        return None
    width, height = (int.from_bytes(frame[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    return height, width


def _vp8l_size(stream: bytes) -> tuple[int, int] | None:
    """Of a lossless image (RFC 9649, 3.4)."""
    bits = int.from_bytes(stream[1:5], "little")
    if stream[0] != 0x2F or bits >> 29:
        return None
    return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)


def _boxes_are_whole(file: IO[bytes], nbytes: int) -> bool:
    """Whether the outermost boxes of an ISO base media file (ISO 14496-12, 4.2) end with it."""
    at = 0
    while at + 8 <= nbytes:
        head = _read_at(file, at, 16)
        size = int.from_bytes(head[:4], "big")
        if size == 0:  # up to the end
            return True
        at += int.from_bytes(head[8:], "big") if size == 1 else size
        if size < 8 and size != 1:
            return False
    return at == nbytes


def _tiff_is_whole(image: Image.Image, nbytes: int) -> bool:
    """Whether a TIFF's directory says where its pixels are, and the file has them all."""
    tags: Any = getattr(image, "tag_v2", {})
    for offsets, sizes in _TIFF_RANGES:
        if offsets in tags and sizes in tags:
            stored = zip(tags[offsets], tags[sizes], strict=False)
            return all(offset + size <= nbytes for offset, size in stored)
    return False


def _png_is_plain(file: IO[bytes], nbytes: int) -> bool:
    """Whether a PNG's chunks reach IEND with no text or EXIF chunk after the pixels.

    Chunks are walked through; in a large file only up to the pixels, and from their last chunk on
    where that stands as far behind the first one as chunks of one size, which encoders write, do.
    """
    at, pixels = 8, False
    while at + 12 <= nbytes:
        head = _read_at(file, at, 8)
        kind, size = head[4:8], int.from_bytes(head[:4], "big")
        if kind == b"IEND":
            return True
        if kind == b"IDAT":
            if not pixels and nbytes > ranges.BLOCK and _ends_in_pixels(file, nbytes, at, size):
                return True
            pixels = True
        elif pixels and kind in _LATE_CHUNKS:
            return False
        at += 12 + size
    return False


def _ends_in_pixels(file: IO[bytes], nbytes: int, first: int, size: int) -> bool:
    """Whether a PNG, whose first chunk of pixels is at `first`, ends in such a chunk and IEND."""
    end = nbytes - 12  # of the pixels
    last = first + max(0, end - first - 1) // (12 + size) * (12 + size)
    head = _read_at(file, last, 8)
    if head[4:] != b"IDAT" or last + 12 + int.from_bytes(head[:4], "big") != end:
        return False
    return _read_at(file, end, 8) == b"\0\0\0\0IEND"


def _read_at(file: IO[bytes], at: int, nbytes: int) -> bytes:
    file.seek(at)
    return file.read(nbytes)
