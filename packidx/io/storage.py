"""Files here and in object stores: one set of functions for paths and for any URL fsspec knows.

A path without a scheme is a file of this machine and costs a system call, no more. Of a URL,
ranges are read by requests; what cannot be read in ranges is copied to the local cache
(`packidx.io.cache`). Credentials come from where the store's own library looks for them
(environment, profile, instance role), never from a URL or an option, so that no manifest can hold
one.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob as local_glob
import io
import os
import re
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from stat import S_ISREG
from typing import Any, NamedTuple, TypeVar

from packidx.errors import MissingExtraError, SourceError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"[^:/]+://[^/@:]*:(?!\d+/)[^@]*@")  # but host:9000/index@1f2e has none
_ATTEMPTS = 3  # of a request; most stores' libraries repeat what the server refuses, too
_PAUSE = 0.2  # seconds before the second attempt, twice as long before the next
# botocore would repeat each of s3fs's five attempts, so that a dead server took minutes to be told.
_S3 = {"config_kwargs": {"retries": {"max_attempts": 0}}}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}
_PART = 8 << 20  # bytes of a request of a download, of which so many are under way
_DOWNLOADS = 4
_UPLOAD = 50 << 20  # bytes of a part of an upload to S3, where it has no more than so many of them
_MOST_PARTS = 10_000
BLOCK = 1 << 16
"""Bytes of a request where a little is read at a place: an image's header, a tar's."""

THREADS = 16
"""Requests under way at a time where many are made: what they wait for is the store."""

# Errors that waiting does not mend.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_LASTING_KINDS = (NotImplementedError, ImportError, TypeError, ValueError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class _BehindEnd(OSError):
    """A range that begins behind a file's last byte."""


S = TypeVar("S")
T = TypeVar("T")


class Stat(NamedTuple):
    """What a store says of a file."""

    nbytes: int
    version: str
    """Another one whenever the content is: an ETag where there is one."""


def is_url(path: str) -> bool:
    """Whether `path` is a URL of an object store; ``file://`` is none."""
    found = _URL.match(path)
    return found is not None and found[1].lower() != "file"


def refuse_password(path: str) -> None:
    """
    Raises:
        SourceError: `path` is a URL with a password in it.
    """
    if _PASSWORD.match(path):
        shown = path.partition("://")[0] + "://" + path.partition("@")[2]
        raise SourceError(
            f"the URL of {shown} has a password in it, which would be written into manifests: name "
            "the place alone, and give credentials where the store's own tools look for them"
        )


def check_url(url: str) -> None:
    """
    Raises:
        SourceError: it is no URL of a store that can be read, or has a password in it.
        MissingExtraError: the package for it is not installed.
    """
    if not is_url(url) or not absolute(url).partition("://")[2]:
        raise SourceError(f"{url} is no URL of a place in an object store: write s3://BUCKET/…")
    _opened(url)


def await_answer(url: str, seconds: float) -> None:
    """See that the store of `url` answers; what it answers does not matter.

    A store that takes connections and never answers is asked again and again by `s3fs` and by
    `_retried`, for some minutes: right for training, and long for whoever only looks.

    Raises:
        TimeoutError: it did not answer within `seconds`.
    """
    system, place = _opened(url)
    if not getattr(system, "async_impl", False):  # nobody can stop waiting for others
        return
    from fsspec.exceptions import FSTimeoutError

    try:
        system.exists(place, timeout=seconds)
    except FSTimeoutError:
        text = f"the store did not answer within {seconds:g} seconds: check its endpoint"
        raise TimeoutError(errno.ETIMEDOUT, text, url) from None
    except Exception:  # which the next request raises, too
        return


def overlapped(call: Callable[[S], T], items: Iterable[S], threads: int = THREADS) -> list[T]:
    """``call`` of each item, by threads: for requests, which wait for a store and not for a core.

    The threads are gone afterwards, so that a process may be forked.
    """
    todo = list(items)
    if len(todo) < 2:
        return [call(item) for item in todo]
    with ThreadPoolExecutor(min(threads, len(todo))) as pool:
        return list(pool.map(call, todo))


def local_path(path: str) -> str:
    """`path` without ``file://``, its escapes undone; any other path or URL as it is."""
    found = _URL.match(path)
    if found is None or found[1].lower() != "file":
        return path
    return urllib.parse.unquote(found[2].removeprefix("localhost"))


def join(folder: str, name: str) -> str:
    """`name` below `folder`, as `os.path.join`, of which either may be a URL."""
    if not is_url(folder):
        return name if is_url(name) else os.path.join(folder, name)
    if is_url(name) or os.path.isabs(name):
        return name
    return f"{folder.rstrip('/')}/{name}"


def absolute(path: str) -> str:
    """`path` with ``.`` and ``..`` taken out; of a file, from the root of this machine."""
    found = _URL.match(path)
    if found is None:
        return os.path.abspath(path)
    place = os.path.normpath("/" + found[2]).lstrip("/")  # ".." stops at the bucket
    return f"{found[1].lower()}://{place}"


def stat(path: str) -> Stat:
    """
    Raises:
        OSError: there is no such file.
    """
    if not is_url(path):
        found = os.stat(path)
        return Stat(found.st_size, str(found.st_mtime_ns))
    info = _call(path, "info")
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return Stat(int(info["size"]), _version(info))


def exists(path: str) -> bool:
    """Whether there is a file or a folder."""
    return is_file(path) or is_folder(path)


def is_file(path: str) -> bool:
    """Whether there is a file.

    Raises:
        OSError: the store cannot be asked.
    """
    if not is_url(path):
        return os.path.isfile(path)
    try:
        stat(path)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def is_folder(path: str) -> bool:
    """Whether there is a folder: of an object store, whether a name begins with it.

    Raises:
        OSError: the store cannot be asked.
    """
    return bool(_call(path, "isdir")) if is_url(path) else os.path.isdir(path)


def names(folder: str) -> list[str]:
    """Names in a folder, sorted; none where there is no such folder.

    Raises:
        OSError: it cannot be listed.
    """
    try:
        if not is_url(folder):
            return sorted(os.listdir(folder))
        found = _call(folder, "ls", detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({one.rstrip("/").rpartition("/")[2] for one in found} - {""})


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, links followed: what is taken out of the folders is not gone into."""
    if not is_url(folder):
        yield from os.walk(folder, followlinks=True)
        return
    root = folder.rstrip("/")
    try:  # what fsspec's own walk cannot list, it passes over
        found = _call(root, "ls", detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    own = _opened(root)[1].rstrip("/")
    below: dict[bool, set[str]] = {True: set(), False: set()}
    for info in found:
        if info["name"].rstrip("/") != own:  # a file is in its own list, and a mark of a folder
            is_below = info.get("type") == "directory"
            below[is_below].add(info["name"].rstrip("/").rpartition("/")[2])
    folders = sorted(below[True])
    yield root, folders, sorted(below[False])
    for name in folders:
        yield from walk(f"{root}/{name}")


def glob(pattern: str) -> list[str]:
    """Files that match, sorted; ``**`` goes through folders, and no wildcard is a leading dot.

    Folders that the pattern begins with, and that are there by that very name, are these.
    """
    if not is_url(pattern):
        folder = os.path.dirname(pattern)
        while not os.path.isdir(folder or "."):
            folder = os.path.dirname(folder)
        rest = pattern[len(folder) :]
        found = local_glob.glob(local_glob.escape(folder) + rest, recursive=True)
        return sorted(name for name in found if not os.path.isdir(name))
    scheme = pattern.partition("://")[0]
    matches: dict[str, Any] = _call(pattern, "glob", detail=True)
    return sorted(
        f"{scheme}://{name}"
        for name, info in matches.items()
        if info.get("type") != "directory" and not _is_hidden(name, pattern)
    )


def _is_hidden(name: str, pattern: str) -> bool:
    """Whether a part of a path begins with a dot that the pattern does not have."""
    dotted = [one for one in pattern.split("/") if one.startswith(".")]
    return any(
        part.startswith(".") and not any(fnmatch.fnmatchcase(part, one) for one in dotted)
        for part in name.split("/")
    )


def read(path: str) -> bytes:
    """A whole file, by one request.

    Raises:
        OSError: it cannot be read.
    """
    if not is_url(path):
        with open(path, "rb", opener=_open_at_once) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is a pipe or device, and no regular file", path)
            return file.read()
    return _range(path, 0, None)  # with a start, nobody asks for the size first


def _open_at_once(path: str, flags: int) -> int:
    """Of a FIFO, too, for whose writer opening would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_range(path: str, offset: int, nbytes: int) -> bytes:
    """Bytes `offset` .. `offset + nbytes` - 1, fewer where the file ends before.

    Raises:
        OSError: it cannot be read.
    """
    if nbytes <= 0:
        return b""
    if is_url(path):
        return _range(path, offset, offset + nbytes)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < nbytes:  # one call returns at most 2 GiB
            piece = os.pread(handle, nbytes - len(data), offset + len(data))
            if not piece:
                break
            data = data + piece if data else piece
    finally:
        os.close(handle)
    return data


def _range(url: str, start: int, end: int | None) -> bytes:
    try:
        return bytes(_call(url, "cat_file", start=start, end=end))
    except _BehindEnd:
        return b""


def open_range(
    path: str, offset: int = 0, nbytes: int | None = None, block: int = BLOCK
) -> io.BufferedReader:
    """A range of a file as a file of its own that can seek; bytes come in blocks, when needed.

    Args:
        path: a file or a URL.
        offset: where it begins.
        nbytes: its size; up to the file's end by default, which costs a request to know.
        block: bytes of one request at least.

    Raises:
        OSError: there is no such file, or later, it cannot be read.
    """
    size = max(0, stat(path).nbytes - offset) if nbytes is None else nbytes
    return io.BufferedReader(_Range(path, offset, size), min(block, max(size, 1)))


class RangeFile(io.RawIOBase):
    """A run of bytes as a raw file that can seek; a subclass says how they are fetched.

    Args:
        nbytes: its size.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes, self._at = nbytes, 0

    def fetch(self, at: int, nbytes: int) -> bytes:
        """Bytes from `at` on, counted from where the file begins."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        data = self.fetch(self._at, max(0, self._nbytes - self._at))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._nbytes - self._at)
        if wanted <= 0:
            return 0
        data = self.fetch(self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Range(RangeFile):
    """The bytes of a file's range, a request each time."""

    def __init__(self, path: str, offset: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self._path, self._offset = path, offset

    def fetch(self, at: int, nbytes: int) -> bytes:
        return read_range(self._path, self._offset + at, nbytes)


def write(path: str, data: bytes) -> None:
    """Put a file into a store, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    _call(path, "pipe_file", data)


def upload(source: str, path: str) -> None:
    """Copy a file of this machine to a store, whole or not at all.

    Raises:
        OSError: it cannot be read or written.
    """
    system, place = _opened(path)
    part = upload_part(path, os.path.getsize(source))
    options = {} if part is None else {"chunksize": part}
    _retried(path, lambda: system.put_file(source, place, **options))


def upload_part(path: str, nbytes: int) -> int | None:
    """Bytes of a part where `upload` puts a large file in parts; None where it is the library's.

    We tell S3 how large they are, since what it calls the file's content depends on it.
    """
    if path.partition("://")[0].lower() not in ("s3", "s3a"):
        return None
    return max(_UPLOAD, -(-nbytes // _MOST_PARTS))


def download(path: str, target: str) -> None:
    """Copy a file of a store to this machine, by requests for some of its bytes each.

    Raises:
        OSError: it cannot be read or written.
    """
    head = _range(path, 0, _PART)
    with open(target, "wb") as file:
        file.write(head)
        if len(head) < _PART:
            return
        file.flush()
        size = stat(path).nbytes

        def fetch(start: int) -> None:
            data = _range(path, start, min(start + _PART, size))
            if len(data) < min(_PART, size - start):
                raise OSError(errno.EIO, "it became shorter while it was read", path)
            os.pwrite(file.fileno(), data, start)

        overlapped(fetch, range(_PART, size, _PART), _DOWNLOADS)


def remove(path: str) -> None:
    """Delete a file of a store, if it is there.

    Raises:
        OSError: it cannot be deleted.
    """
    with contextlib.suppress(FileNotFoundError):
        _call(path, "rm_file")


def _version(info: dict[str, Any]) -> str:
    for name in ("ETag", "etag", "md5", "version_id", "LastModified", "mtime", "created"):
        if info.get(name) is not None:
            return str(info[name]).strip('"')
    return str(info["size"])


def _call(path: str, method: str, *args: Any, **options: Any) -> Any:
    system, place = _opened(path)
    return _retried(path, functools.partial(getattr(system, method), place, *args, **options))


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and what it calls the file.

    fsspec keeps one per process and makes it anew after a fork (see `_leave_parent`).

    Raises:
        SourceError: nobody knows the scheme.
        MissingExtraError: the package for it is not installed.
    """
    refuse_password(url)
    scheme = url.partition("://")[0].lower()
    try:
        import fsspec

        system = fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ValueError as error:
        raise SourceError(f"{url}: {error}; name a file, or a URL such as s3://") from None
    except ImportError as error:
        own = "pip install fsspec" if error.name == "fsspec" else str(error)
        pip = "pip install 'packidx[s3]'" if scheme in ("s3", "s3a") else own
        raise MissingExtraError(f"{url} needs a package that is not here: {pip}") from None
    except Exception as error:  # of a store that cannot be reached by a URL alone
        text = f"{url}: {scheme} cannot be used ({_words(error)}); name a file, or an s3:// URL"
        raise SourceError(text) from None
    return system, system._strip_protocol(f"{scheme}://{url.partition('://')[2]}")


def _leave_parent() -> None:
    """Let a forked child start fsspec's thread anew, without which it would wait for ever.

    fsspec does so by itself from 2025.3.1 on; before, it leaves this call to its user.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()


os.register_at_fork(after_in_child=_leave_parent)


def _retried(path: str, call: Callable[[], T]) -> T:
    """``call()``, tried again where the connection failed.

    Raises:
        OSError: with `path` as its file name, whatever the store's library raised.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except _LASTING as error:
            raise type(error)(error.errno or errno.ENOENT, _words(error), path) from None
        except _LASTING_KINDS as error:
            raise OSError(errno.EINVAL, _words(error), path) from None
        except Exception as error:
            if type(error).__name__ in _CREDENTIALS:
                raise PermissionError(errno.EACCES, "no credentials were found", path) from None
            if getattr(error, "errno", None) == errno.EINVAL or "InvalidRange" in str(error):
                raise _BehindEnd(errno.EINVAL, _words(error), path) from None
            if attempt + 1 == _ATTEMPTS:
                number = getattr(error, "errno", None) or errno.EIO
                raise OSError(number, _words(error), path) from error
        time.sleep(_PAUSE * 2**attempt)
    raise AssertionError("unreachable")


def _words(error: BaseException) -> str:
    named = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(named.split()) or type(error).__name__
