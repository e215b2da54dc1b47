"""Files here and in object stores: one set of functions for paths and for any URL fsspec knows.

A path without a scheme is a file of this machine and costs a system call, no more. Of a URL,
ranges are read by requests; what cannot be read in ranges is copied to the local cache
(`packidx.io.cache`). Credentials come from where the store's own library looks for them
(environment, profile, instance role), never from a URL or an option, so that no manifest can hold
one. What cannot be asked, read or written is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob as local_glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from stat import S_ISDIR, S_ISREG
from typing import Any, NamedTuple, TypeVar

from packidx.errors import SourceError
from packidx.io.files import refuse_open_files, write_atomic
from packidx.io.stores import BehindEnd, T, call_store, file_version, open_store, retry_request
from packidx.io.urls import is_url

THREADS = 16
"""Requests under way at a time where many are made: what they wait for is the store."""

S = TypeVar("S")

Uploaded = Callable[[int, int], None]
"""``uploaded(done, total)``: so many files are in the store."""


class Stat(NamedTuple):
    """The facts of a file in a store."""

    nbytes: int
    version: str
    """Another one whenever the content is: an ETag where there is one, a file's time of change."""


def map_overlapped(call: Callable[[S], T], items: Iterable[S], threads: int = THREADS) -> list[T]:
    """``call`` of each item, by threads: for requests, which wait for a store and not for a core.

    The threads are gone afterwards, so that a process may be forked.
    """
    todo = list(items)
    if len(todo) < 2:
        return [call(item) for item in todo]
    with ThreadPoolExecutor(min(threads, len(todo))) as pool:
        return list(pool.map(call, todo))


def stat(path: str) -> Stat:
    """Return it for a file; an OSError where there is none."""
    if not is_url(path):
        status = os.stat(path)
        return Stat(status.st_size, str(status.st_mtime_ns))
    info = call_store(path, "info")
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return Stat(int(info["size"]), file_version(info))


def exists(path: str) -> bool:
    """Return whether there is a file or a folder."""
    return is_file(path) or is_folder(path)


def size_of(path: str) -> int | None:
    """Bytes of a file; None if there is none."""
    if not is_url(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    try:
        return stat(path).nbytes
    except (FileNotFoundError, IsADirectoryError):
        return None


def is_file(path: str) -> bool:
    """Return whether there is a file."""
    return size_of(path) is not None if is_url(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Return whether there is a folder: of an object store, whether a name begins with it."""
    return bool(call_store(path, "isdir")) if is_url(path) else os.path.isdir(path)


def list_names(folder: str) -> list[str]:
    """Names in a folder, sorted; none if there is no such folder."""
    try:
        if not is_url(folder):
            return sorted(os.listdir(folder))
        entries = call_store(folder, "ls", detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries} - {""})


def files_below(url: str) -> list[str]:
    """Paths of all files below a folder of a store, relative to it, sorted; none if there is no
    such folder."""
    try:
        paths = call_store(url, "find")
    except (FileNotFoundError, NotADirectoryError):
        return []
    own = f"{open_store(url)[1].rstrip('/')}/"  # as the store writes it; a mark of a folder ends so
    names = (path.removeprefix(own) for path in paths if path.startswith(own))
    return sorted(name for name in names if name and not name.endswith("/"))


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk`, links followed: what is taken out of the folders is not gone into."""
    if not is_url(folder):
        yield from os.walk(folder, followlinks=True)
    elif names := files_below(folder):
        yield from _walk_levels(folder.rstrip("/"), names)


def _walk_levels(here: str, names: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    below: dict[str, list[str]] = {}
    for name in names:
        folder, separator, rest = name.partition("/")
        if separator:
            below.setdefault(folder, []).append(rest)
    folders = sorted(below)
    yield here, folders, [name for name in names if "/" not in name]
    for folder in folders:
        yield from _walk_levels(f"{here}/{folder}", below[folder])


def glob(pattern: str) -> list[str]:
    """Files that match, sorted; ``**`` goes through folders, and no wildcard is a leading dot.

    Folders that the pattern begins with, and that are there by that very name, are these.
    """
    if not is_url(pattern):
        folder = os.path.dirname(pattern)
        while not os.path.isdir(folder or "."):
            folder = os.path.dirname(folder)
        rest = pattern[len(folder) :]
        paths = local_glob.glob(local_glob.escape(folder) + rest, recursive=True)
        return sorted(name for name in paths if not os.path.isdir(name))
    scheme = pattern.partition("://")[0]
    matches: dict[str, Any] = call_store(pattern, "glob", detail=True)
    return sorted(
        f"{scheme}://{name}"
        for name, info in matches.items()
        if info.get("type") != "directory" and not _is_hidden(name, pattern)
    )


def _is_hidden(name: str, pattern: str) -> bool:
    """Return whether a part of a path begins with a dot that the pattern does not have."""
    dotted = [entry for entry in pattern.split("/") if entry.startswith(".")]
    return any(
        part.startswith(".") and not any(fnmatch.fnmatchcase(part, entry) for entry in dotted)
        for part in name.split("/")
    )


def read(path: str) -> bytes:
    """A whole file, by one request."""
    if not is_url(path):
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    return _request_range(path, 0, None)  # with a start, the size is not asked for first


def open_regular(path: str, flags: int) -> int:
    """`os.open` of a regular file: a pipe of that name must not stop the program."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if S_ISREG(mode):
        return handle
    os.close(handle)
    if S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a pipe or device, and no regular file", path)


def read_range(path: str, offset: int, nbytes: int) -> bytes:
    """Bytes `offset` .. `offset + nbytes` - 1, fewer where the file ends before."""
    if nbytes <= 0:
        return b""
    if is_url(path):
        return _request_range(path, offset, offset + nbytes)
    with open(path, "rb", 0 if nbytes < 1 << 30 else -1) as file:  # a call gives 2 GiB at most
        file.seek(offset)
        return file.read(nbytes)


def _request_range(url: str, start: int, end: int | None) -> bytes:
    try:
        return bytes(call_store(url, "cat_file", start=start, end=end))
    except BehindEnd:
        return b""


def write(path: str, data: bytes) -> None:
    """Write a file, whole or not at all."""
    if is_url(path):
        call_store(path, "pipe_file", data)
    else:
        write_atomic(path, data)


def upload_file(source: str, path: str) -> None:
    """Copy a file of this machine to a store, whole or not at all."""
    system, name = open_store(path)
    retry_request(path, lambda: system.put_file(source, name))


def upload_all(files: Mapping[str, str], uploaded: Uploaded | None = None) -> None:
    """Copy files of this machine to a store (URL -> path), several at a time, or raise an
    OSError."""
    done = 0

    def upload_one(file: tuple[str, str]) -> None:
        nonlocal done
        url, path = file
        upload_file(path, url)
        done += 1
        if uploaded is not None:
            uploaded(done, len(files))

    map_overlapped(upload_one, list(files.items()))


def download_file(path: str, target: str) -> None:
    """Copy a file of a store to this machine."""
    system, name = open_store(path)
    retry_request(path, lambda: system.get_file(name, target))


def remove_file(path: str) -> None:
    """Delete a file of a store, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        call_store(path, "rm_file")


@contextlib.contextmanager
def raise_unreadable(path: str) -> Iterator[None]:
    """An OSError in the block becomes the SourceError of `path`, which cannot be read."""
    try:
        yield
    except OSError as error:
        raise unreadable_error(path, error) from error


def unreadable_error(path: str, error: Exception) -> SourceError:
    """The error of a file that cannot be read; or raise a LimitError if too many files are open."""
    refuse_open_files(error)
    reason = getattr(error, "strerror", None) or str(error)
    of_store = "the URL, and that this machine has access to the store"
    check = of_store if is_url(path) else "the path and its permissions"
    return SourceError(f"cannot read {path}: {reason}; check {check}")
