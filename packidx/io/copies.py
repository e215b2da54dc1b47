"""Files that a manifest names, wherever they are: local copies, checked against it, and digests.

A file of this machine is its own copy, compared with its digest once per process. One of an object
store is copied into the cache (`packidx.io.cache`) when it is first needed, named by the digest
that the manifest states, so that the store is not asked again; several are fetched side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from packidx.digests import file_digest
from packidx.errors import FormatError
from packidx.io import storage, urls

_BLOCK = 8 << 20  # bytes of a request where a file is only hashed
_REMEMBERED = 1 << 14
_OTHER = "has other content than its manifest's sha256"

_digests: dict[tuple[str, int, int], str] = {}  # by path, inode and ctime


class StoredFile(NamedTuple):
    """A file, and what its manifest says of it."""

    path: str
    nbytes: int | None = None
    sha256: str | None = None


@contextlib.contextmanager
def local_copy(file: StoredFile) -> Iterator[str]:
    """A file of this machine with the content of `file`, there for as long as the block.

    What was opened in the block stays readable after it.

    Raises:
        FormatError: the file is not there, or another one is in its place.
        OSError: it cannot be read, or the cache cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            if urls.is_url(file.path):
                copy, wrong = _cached(file, stack)
            else:  # an absolute path, of which Arrow takes no part for a home folder or a URL
                copy, wrong = os.path.abspath(file.path), _wrong(file, file.path)
        except FileNotFoundError:
            wrong = "is missing"
        if wrong:
            raise FormatError(
                f"{file.path} {wrong}: it is damaged or being replaced; write it again"
            )
        yield copy


def _cached(file: StoredFile, stack: contextlib.ExitStack) -> tuple[str, str | None]:
    """The cache's copy of a store's file, and what is wrong with it."""
    from packidx.io import cache

    copy = stack.enter_context(cache.local(file.path, file.sha256, check=True))
    wrong, sha256 = _wrong(file._replace(sha256=None), copy), os.path.basename(copy)[:64]
    if wrong is None and file.sha256 not in (None, sha256):
        wrong = _OTHER
    if wrong is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)  # the next reader asks the store again
    return copy, wrong


@contextlib.contextmanager
def local_copies(files: Sequence[StoredFile]) -> Iterator[list[str]]:
    """`local_copy` of several files."""
    if any(urls.is_url(file.path) for file in files):
        _allow_open_files(len(files) + 256)  # each copy is held by a handle
    with contextlib.ExitStack() as stack:
        yield storage.overlapped(lambda file: stack.enter_context(local_copy(file)), files)


class Content(NamedTuple):
    """What a file holds."""

    sha256: str
    nbytes: int
    """Bytes that were hashed."""


def content_of(path: str) -> Content:
    """Hash what is at `path` now: of a URL, what the store has, not a copy.

    Raises:
        OSError: it cannot be read.
    """
    if urls.is_url(path):
        hasher, nbytes = hashlib.sha256(), 0
        while nbytes % _BLOCK == 0 and (block := storage.read_range(path, nbytes, _BLOCK)):
            hasher.update(block)
            nbytes += len(block)
        return Content(hasher.hexdigest(), nbytes)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        content = Content(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
    _remember(path, status, content.sha256)
    return content


def _wrong(file: StoredFile, copy: str) -> str | None:
    """Return what is wrong with a copy; its content is looked at once per process."""
    if file.nbytes is None and file.sha256 is None:
        return None
    status = os.stat(copy)
    if file.nbytes is not None and status.st_size != file.nbytes:
        return f"has {status.st_size} bytes, its manifest says {file.nbytes}"
    if file.sha256 is not None and _known_digest(copy, status) != file.sha256:
        return _OTHER
    return None


def _known_digest(path: str, status: os.stat_result) -> str:
    """SHA-256 of a file of this machine, remembered for as long as it is not written."""
    version = path, status.st_ino, status.st_ctime_ns
    if version not in _digests:
        _remember(path, status, file_digest(path))
    return _digests[version]


def _remember(path: str, status: os.stat_result, sha256: str) -> None:
    if len(_digests) >= _REMEMBERED:
        _digests.clear()
    _digests[path, status.st_ino, status.st_ctime_ns] = sha256


def _allow_open_files(number: int) -> None:
    """Raise the soft limit of open files to `number`, as far as the hard one lets us."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def unsound_file(files: Sequence[StoredFile]) -> str | None:
    """Return what is wrong with the first file that is not there in the size its manifest says.

    Raises:
        OSError: a store cannot be asked.
    """
    sizes = storage.overlapped(storage.size_of, [file.path for file in files])
    for file, actual in zip(files, sizes, strict=True):
        if actual != file.nbytes:
            state = "is missing" if actual is None else f"has {actual} bytes"
            return f"{file.path} {state}, its manifest says {file.nbytes}"
    return None
