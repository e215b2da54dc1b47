"""Media files: where a reference leads, how large an image is, and the opened image.

Sizes come from headers alone. `image_size` and `open_image` apply the EXIF orientation alike, so
that a planned size is the size that training sees.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import stat
import urllib.parse
import warnings
from collections.abc import Callable, Mapping
from typing import IO, Any

from PIL import Image, ImageOps, UnidentifiedImageError

from packidx.errors import BadRecord
from packidx.records.conversation import Media
from packidx.records.dialects import (
    TURN_KEYS,
    is_opened,
    media_entries,
    part_kind,
    reference_of,
)
from packidx.records.paths import data_uri, real_folder, resolve, shortened

__all__ = ["forget_sizes", "image_size", "media_size", "open_image", "open_media", "resolve"]

Moved = Callable[[str], str]

_MAX_PIXELS = 178_956_970  # Pillow's default limit for a decompression bomb: an error beyond it
_IN_MEMORY = 1 << 18  # smaller files are read at once
_TAIL = 64
_SWAPPED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT = 0x0100, 0x0101
_LATE_CHUNKS = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")  # may hold an orientation
_FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "AVIF",
    "JPEG2000",
    "MPO",
    "PPM",
    "DIB",
) + (
    "ICO",
    "TGA",
    "PCX",
    "SGI",
    "QOI",
)  # pixels only: Pillow also "opens" stubs whose size is made up, and PostScript


def image_size(source: str | bytes) -> tuple[int, int]:
    """(height, width) in pixels of an image file or its bytes, EXIF orientation applied.

    Only the header is read, unless the end of the file looks cut off: such an image is decoded
    once, to tell a truncated one from one that is merely unusual.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
    """
    return _size(source, _label(source))


def media_size(media: Media, root: str, *, confined: bool) -> tuple[int, int] | None:
    """(height, width) of one medium: stated, else from its image's header; None for a video.

    Answers about paths are remembered until `forget_sizes`.

    Raises:
        BadRecord: as `resolve` and `image_size`; ``bad_media`` where there is nothing to look at.
    """
    if media.height is not None and media.width is not None:
        if media.kind == "image" and media.height * media.width > _MAX_PIXELS:
            size = f"{media.height} x {media.width}"
            raise BadRecord("media_too_large", f"an image is stated to have {size} pixels")
        check_place(media, root, confined=confined)
        return media.height, media.width
    if media.kind != "image":
        _check_exists(media.ref, root, confined)
        return None
    if isinstance(media.ref, bytes):
        return image_size(media.ref)
    if not isinstance(media.ref, str):
        raise BadRecord("bad_media", "an image without a path, bytes or stated size")
    if media.ref.startswith("data:"):
        return _size(data_uri(media.ref), "a data: URI")
    answer = _remembered_size(media.ref, root, confined)
    if isinstance(answer, tuple):
        return answer
    raise BadRecord(answer.reason, answer.detail)


def check_place(media: Media, root: str, *, confined: bool) -> None:
    """Refuse a reference that the reader will refuse, without looking at the file.

    Raises:
        BadRecord: as `resolve`.
    """
    if isinstance(media.ref, str) and not media.ref.startswith("data:"):
        resolve(media.ref, root, confined=confined)


def forget_sizes() -> None:
    """Forget what `media_size` remembers: files may have changed since."""
    for remembered in (_remembered_size, _exists, real_folder):
        remembered.cache_clear()


def open_image(source: Any) -> Image.Image:
    """An image, upright (EXIF orientation applied), its pixels not decoded before they are needed.

    Args:
        source: a path, a file's bytes or an opened image.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
    """
    label = "an image" if is_opened(source) else _label(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = source if is_opened(source) else _opened_file(source, label)
            if _orientation(image) in range(2, 9):
                image = ImageOps.exif_transpose(image)
    except Exception as error:
        raise _broken(label, error) from None
    return image


def _opened_file(source: str | bytes, label: str) -> Image.Image:
    # From memory: an image that waits to be decoded must not hold a file open.
    data = _read(source, label)
    file = io.BytesIO(data)
    image = _identify(file, label)
    _load_if_cut(image, file, len(data))
    return image


def open_media(
    record: Mapping[str, Any], root: str, confined: bool, moved: Moved = str
) -> dict[str, Any]:
    """A shallow copy of a raw record in which every image is opened and upright.

    The record keeps its dialect: entries of its own image list become PIL images, and content
    parts that name an image become ``{"type": "image", "image": <PIL image>}``. Videos stay as
    they are. `dialects.parse` accepts the result.

    Args:
        record: the raw record, as it stands in its shard.
        root: the folder that relative paths start from.
        confined: whether nothing outside `root` may be read.
        moved: old absolute path -> where it is now.

    Raises:
        BadRecord: as `resolve` and `open_image`, or the record is no object.
    """
    if not isinstance(record, Mapping):
        raise BadRecord("bad_record", "the record is not an object")
    opened = dict(record)
    opened_at = functools.partial(_opened, root=root, confined=confined, moved=moved)
    key, entries = media_entries(record, "image")
    if key is not None:
        images = [opened_at(reference_of(entry)) for entry in entries]
        opened[key] = images if isinstance(record[key], list | tuple) else images[0]
    for key in TURN_KEYS:
        if isinstance(record.get(key), list | tuple):
            opened[key] = [_opened_turn(turn, opened_at) for turn in record[key]]
    return opened


def _opened_turn(turn: Any, opened_at: Callable[[Any], Image.Image]) -> Any:
    content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
    if not isinstance(content, list | tuple):
        return turn
    name = "content" if "content" in turn else "value"
    return {**turn, name: [_opened_part(part, opened_at) for part in content]}


def _opened_part(part: Any, opened_at: Callable[[Any], Image.Image]) -> Any:
    if isinstance(part, str) or part_kind(part) != "image":
        return part
    ref = reference_of(part)
    if ref is None:
        return part
    kept = {
        k: v for k, v in part.items() if k not in ("image_url", "url", "path", "bytes", "base64")
    }
    return {**kept, "type": "image", "image": opened_at(ref)}


def _opened(ref: Any, root: str, confined: bool, moved: Moved) -> Image.Image:
    if not isinstance(ref, str):
        return open_image(ref)
    path = urllib.parse.unquote(ref[7:]) if ref.startswith("file:///") else ref
    if os.path.isabs(path):
        ref = moved(path)
    return open_image(resolve(ref, root, confined=confined))


def _check_exists(ref: Any, root: str, confined: bool) -> None:
    if isinstance(ref, str):
        path = resolve(ref, root, confined=confined)
        if isinstance(path, str) and not _exists(path):
            raise BadRecord("missing_media", f"{shortened(ref)!r} does not exist")


@functools.lru_cache(maxsize=1 << 16)
def _exists(path: str) -> bool:
    return os.path.isfile(path)


@functools.lru_cache(maxsize=1 << 16)
def _remembered_size(ref: str, root: str, confined: bool) -> tuple[int, int] | BadRecord:
    try:
        # The reference, not the path, goes into the detail: it is the same on every machine.
        return _size(resolve(ref, root, confined=confined), repr(shortened(ref)))
    except BadRecord as error:
        return error.with_traceback(None)


def _size(source: str | bytes, label: str) -> tuple[int, int]:
    file, nbytes = _open(source, label)
    with file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


def _open(source: str | bytes, label: str) -> tuple[IO[bytes], int]:
    """The source as a file that can seek (in memory if small), and its size in bytes."""
    if isinstance(source, bytes):
        file: IO[bytes] = io.BytesIO(source)
        nbytes = len(source)
    else:
        try:
            file = open(source, "rb", opener=_open_regular)  # noqa: SIM115, the caller closes it
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes <= _IN_MEMORY:
                with file:
                    file = io.BytesIO(file.read())
                nbytes = len(file.getbuffer())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise BadRecord("missing_media", f"{label} does not exist") from None
        except OSError as error:
            reason = "missing_media" if error.errno == errno.ENAMETOOLONG else "broken_media"
            raise BadRecord(reason, f"{label} cannot be read: {error.strerror}") from None
    if not nbytes:
        raise BadRecord("broken_media", f"{label} is empty")
    return file, nbytes


def _open_regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)  # a pipe of that name must not stop the program
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file")
    return handle


def _read(source: str | bytes, label: str) -> bytes:
    if isinstance(source, bytes):
        return source
    file, _ = _open(source, label)
    with file:
        try:
            return file.read()
        except OSError as error:
            raise BadRecord("broken_media", f"{label} cannot be read: {error.strerror}") from None


def _identify(file: IO[bytes], label: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(file, formats=_formats())
    except Image.DecompressionBombError:
        text = f"{label} has more pixels than Pillow opens (Image.MAX_IMAGE_PIXELS)"
        raise BadRecord("media_too_large", text) from None
    except UnidentifiedImageError:
        raise BadRecord("broken_media", f"{label} is no image of a known format") from None
    except Exception as error:
        raise _broken(label, error) from None


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _broken(label: str, error: Exception) -> BadRecord:
    if isinstance(error, BadRecord):
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
    if image.format == "PNG":
        whole = _png_is_plain(file, nbytes)
    elif image.format in ("JPEG", "MPO"):
        file.seek(max(0, nbytes - _TAIL))
        whole = file.read(_TAIL).rstrip(b"\0\r\n").endswith(b"\xff\xd9")
    elif image.format == "WEBP":
        file.seek(4)
        whole = int.from_bytes(file.read(4), "little") + 8 <= nbytes
    else:
        whole = True
    file.seek(at)
    if not whole:
        image.load()


def _png_is_plain(file: IO[bytes], nbytes: int) -> bool:
    """Whether a PNG's chunks reach IEND with no text or EXIF chunk after the pixels."""
    at, pixels = 8, False
    while at + 12 <= nbytes:
        file.seek(at)
        head = file.read(8)
        kind = head[4:8]
        if kind == b"IEND":
            return True
        if kind == b"IDAT":
            pixels = True
        elif pixels and kind in _LATE_CHUNKS:
            return False
        at += 12 + int.from_bytes(head[:4], "big")
    return False


def _label(source: str | bytes) -> str:
    return repr(shortened(source)) if isinstance(source, str) else "an image in the record"
