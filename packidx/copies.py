"""Files that a manifest names, wherever they are: local copies, checked against it, and digests.

A file of this machine is its own copy. One of an object store is copied into the cache
(`packidx.cache`) when it is first needed, named by the digest that the manifest states, so that
the store is not asked again; several are fetched side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from packidx import storage
from packidx.errors import FormatError
from packidx.files import file_digest

_BLOCK = 8 << 20  # bytes of a request where a file is only hashed
_SPARE = 256  # handles that a process has for other files
_REMEMBERED = 1 << 14

_checked: set[tuple[str, int, int]] = set()  # copies that were as their manifest says

T = TypeVar("T")
R = TypeVar("R")


class Part(NamedTuple):
    """A file, and what its manifest says of it."""

    path: str
    nbytes: int | None = None
    sha256: str | None = None


@contextlib.contextmanager
def local_copy(part: Part) -> Iterator[str]:
    """A file of this machine with the content of `part`, there for as long as the block.

    What was opened in the block stays readable after it.

    Raises:
        FormatError: the store does not have the file, or another one in its place.
        OSError: it cannot be read, or the cache cannot be written.
    """
    if not storage.is_url(part.path):
        yield os.path.abspath(part.path)  # of which Arrow takes no part for a home folder or a URL
        return
    from packidx import cache

    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(cache.local(part.path, part.sha256))
            if _wrong(part, copy):  # damaged here, or by the store: a new copy tells
                os.unlink(copy)
                copy = stack.enter_context(cache.local(part.path, part.sha256))
        except FileNotFoundError:
            raise FormatError(
                f"{part.path} is missing: it was removed, or is being replaced; write it again"
            ) from None
        if wrong := _wrong(part, copy):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy)  # the next reader asks the store again
            raise FormatError(
                f"{part.path} {wrong}: it is damaged or being replaced; write it again"
            )
        yield copy


@contextlib.contextmanager
def local_copies(parts: Sequence[Part]) -> Iterator[list[str]]:
    """`local_copy` of several files."""
    if not any(storage.is_url(part.path) for part in parts):
        yield [os.path.abspath(part.path) for part in parts]
        return
    _allow_open_files(len(parts) + _SPARE)  # each copy is held by a handle
    with contextlib.ExitStack() as stack:
        yield overlapped(lambda part: stack.enter_context(local_copy(part)), parts)


def overlapped(call: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
    """``[call(one) for one in arguments]``, several at a time where one waits for a store.

    Args:
        call: of a path, or of a tuple that begins with one.
        arguments: what it is called with.
    """
    listed = list(arguments)
    if len(listed) < 2 or not any(storage.is_url(_path_of(one)) for one in listed):
        return [call(one) for one in listed]
    return storage.overlapped(call, listed)


def _path_of(argument: object) -> str:
    return str(argument[0] if isinstance(argument, tuple) else argument)


def content_digest(path: str) -> str:
    """SHA-256 of what is at `path` now: of a URL, of what the store has, not of a copy.

    Raises:
        OSError: it cannot be read.
    """
    if not storage.is_url(path):
        return file_digest(path)
    hasher, at = hashlib.sha256(), 0
    while True:
        block = storage.read_range(path, at, _BLOCK)
        hasher.update(block)
        at += len(block)
        if len(block) < _BLOCK:
            return hasher.hexdigest()


def sizes(paths: Sequence[str]) -> list[int | None]:
    """Bytes of each file, None where there is none.

    Raises:
        OSError: a store cannot be asked.
    """
    return overlapped(_size, paths)


def _size(path: str) -> int | None:
    if not storage.is_url(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    try:
        return storage.stat(path).nbytes
    except (FileNotFoundError, IsADirectoryError):
        return None


def _wrong(part: Part, copy: str) -> str | None:
    """What is wrong with a copy, looked at once per process."""
    found = os.stat(copy)
    known = copy, found.st_ino, found.st_mtime_ns
    if known in _checked:
        return None
    if part.nbytes is not None and found.st_size != part.nbytes:
        return f"has {found.st_size} bytes, its manifest says {part.nbytes}"
    if part.sha256 is not None and file_digest(copy) != part.sha256:
        return "has other content than its manifest's sha256"
    if len(_checked) >= _REMEMBERED:
        _checked.clear()
    _checked.add(known)
    return None


def _allow_open_files(number: int) -> None:
    """Raise the soft limit of open files to `number`, as far as the hard one lets us."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
