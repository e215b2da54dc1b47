"""Files that a manifest names, wherever they are: local copies, checked against it, and digests.

A file of this machine is its own copy, compared with its digest once per process. One of an object
store is copied into the cache (`packidx.io.cache`) when it is first needed, named by the digest
that the manifest states, so that the store is not asked again; several are fetched side by side.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from packidx.digests import file_digest, known_digest
from packidx.errors import FormatError
from packidx.io import cache, storage, urls

_BLOCK = 8 << 20  # bytes of a request where a file is only hashed


class StoredFile(NamedTuple):
    """A file, and what its manifest says of it."""

    path: str
    nbytes: int | None = None
    sha256: str | None = None


def local_copy(file: StoredFile) -> str:
    """Return the path of a file of this machine with the content of `file`.

    Raises:
        FormatError: the file is not there, or another one is in its place.
        OSError: it cannot be read, or the cache cannot be written.
    """
    is_remote = urls.is_url(file.path)
    try:
        # An absolute path has no part that Arrow takes for a home folder or a URL.
        copy = os.path.abspath(file.path)
        if is_remote:
            copy = cache.local(file.path, file.sha256, check=True)
        if (wrong := _wrong(file, copy)) is None:
            return copy
        if is_remote:
            os.unlink(copy)  # the next reader asks the store again
    except FileNotFoundError:
        wrong = "is missing"
    raise FormatError(f"{file.path} {wrong}: it is damaged or being replaced; write it again")


def local_copies(files: Sequence[StoredFile]) -> list[str]:
    """Return `local_copy` of several files."""
    return storage.overlapped(local_copy, files)


def _wrong(file: StoredFile, copy: str) -> str | None:
    """Return what is wrong with a copy; its content is looked at once per process."""
    nbytes = os.path.getsize(copy)
    if file.nbytes not in (None, nbytes):
        return f"has {nbytes} bytes, its manifest says {file.nbytes}"
    if file.sha256 is not None and file.sha256 != known_digest(copy):
        return "has other content than its manifest's sha256"
    return None


class Content(NamedTuple):
    """Size and SHA-256 of a file."""

    nbytes: int
    sha256: str


def content_of(path: str) -> Content:
    """Hash what is at `path` now: of a URL, what the store has, not a copy.

    Raises:
        OSError: it cannot be read.
    """
    if not urls.is_url(path):
        return Content(os.path.getsize(path), file_digest(path))
    hasher, nbytes = hashlib.sha256(), 0
    while nbytes % _BLOCK == 0 and (block := storage.read_range(path, nbytes, _BLOCK)):
        hasher.update(block)
        nbytes += len(block)
    return Content(nbytes, hasher.hexdigest())
