"""An image's file, wherever it is: a path, a URL, LMDB, a tar, or bytes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from typing import IO

from packidx.errors import BadRecord
from packidx.io import ranges, storage, urls
from packidx.io.ranges import Extent, ReadAhead
from packidx.io.storage import unreadable
from packidx.records.media.inside import InRoot, open_regular
from packidx.records.media.lmdb_store import read_value, split_reference
from packidx.records.media.paths import shortened

_IN_MEMORY = 1 << 18  # smaller files are read at once
_GAP = 1 << 12  # bytes of an object that are read rather than skipped
Source = str | InRoot | bytes | Extent
"""A path, a URL, a path in a media root, a file's bytes, or where they lie."""


def read_image(source: Source) -> bytes:
    """All of an image's file, from a store by one request.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        SourceError: an object store, or the tar that it is in, cannot be read.
    """
    return content_of(source, label_of(source))


def open_file(source: Source, label: str) -> tuple[IO[bytes], int]:
    """The source as a file that can seek (in memory if small), and its size in bytes.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``: there is nothing to read;
            ``media_outside_root``.
        SourceError: an object store, or the tar that it is in, cannot be read.
    """
    content = stored_value(source, label)
    source = source if content is None else content
    file: IO[bytes]
    if isinstance(source, bytes):
        file, nbytes = io.BytesIO(source), len(source)
    elif isinstance(source, Extent):
        small = source.nbytes <= ranges.BLOCK // 2
        file = io.BytesIO(source.peek()) if small else source.open()
        nbytes = source.nbytes
    elif isinstance(source, str) and urls.is_url(source):
        file, nbytes = _open_url(source, label)
    else:
        try:
            path, root = _confined(source)
            handle, status = open_regular(path, root, label)
            nbytes = status.st_size
            if nbytes > _IN_MEMORY:
                file = open(handle, "rb")  # noqa: SIM115, the caller closes it
            else:
                data = _read_all(handle, nbytes)
                file, nbytes = io.BytesIO(data), len(data)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise BadRecord("missing_media", f"{label} does not exist") from None
        except OSError as error:
            reason = "missing_media" if error.errno == errno.ENAMETOOLONG else "broken_media"
            raise BadRecord(reason, f"{label} cannot be read: {error.strerror}") from None
    if not nbytes:
        raise BadRecord("broken_media", f"{label} is empty")
    return file, nbytes


def stored_value(source: Source, label: str) -> bytes | None:
    """The bytes of a source that is a value of a database; None of any other."""
    if not isinstance(source, str | InRoot):
        return None
    path, root = _confined(source)
    entry = split_reference(path)
    return None if entry is None else read_value(*entry, label, root)


def _confined(source: str | InRoot) -> tuple[str, str | None]:
    """A path, and the folder that it must lie in."""
    return (source.path, source.root) if isinstance(source, InRoot) else (source, None)


def _read_all(handle: int, nbytes: int) -> bytes:
    """A small file's content; `handle` is closed."""
    try:
        data = os.read(handle, nbytes)
        while data and len(data) < nbytes and (piece := os.read(handle, nbytes - len(data))):
            data += piece
    finally:
        os.close(handle)
    return data


def _open_url(url: str, label: str) -> tuple[IO[bytes], int]:
    """An object by its first block; its size is asked for where that is not all of it."""
    with _asked(url, label):
        head = storage.read_range(url, 0, ranges.BLOCK)
        if len(head) < ranges.BLOCK:
            return io.BytesIO(head), len(head)
        nbytes = storage.stat(url).nbytes
    return Extent(ReadAhead(url, nbytes, gap=_GAP, head=head), 0, nbytes).open(), nbytes


@contextlib.contextmanager
def _asked(url: str, label: str) -> Iterator[None]:
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


def content_of(source: Source, label: str) -> bytes:
    """`read_image`, with errors that call the image `label`."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, Extent):
        return source.read()
    if isinstance(source, str) and urls.is_url(source) and split_reference(source) is None:
        with _asked(source, label):
            data = storage.read(source)
        if not data:
            raise BadRecord("broken_media", f"{label} is empty")
        return data
    file, _ = open_file(source, label)
    with file:
        try:
            return file.read()
        except OSError as error:
            raise BadRecord("broken_media", f"{label} cannot be read: {error.strerror}") from None


def label_of(source: Source, medium: str = "an image") -> str:
    """How errors name a medium."""
    path = source.path if isinstance(source, InRoot) else source
    return repr(shortened(path)) if isinstance(path, str) else f"{medium} in the record"
