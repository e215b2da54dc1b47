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
from packidx.records.media.image_headers import is_whole, webp_size
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
