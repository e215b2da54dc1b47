"""Files that all processes share: local copies, of a bounded total size, and answers as JSON.

<cache>/files/<key>/<sha256>-<name> a copy of a store's file, or a compressed file's text; the key
                              is a digest of its source and version, the sha256 that of the copy
<cache>/<what>/<digest>.json  an answer that takes seconds to find, and the digest of its content;
                              the digest in its name is of all that decides it

Of several processes one makes a copy, and it is not removed while it is used (`flock` of its
folder). Where the bound is reached, copies used longest ago are removed. All copies have one time
of change: one that was written into since is known by it, and made again. ``PACKIDX_CACHE`` names
the folder (default: ``packidx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``), ``PACKIDX_CACHE_SIZE`` the
bound (default 16GB).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from packidx.digests import digest, file_digest
from packidx.errors import OptionError
from packidx.io import files, storage
from packidx.io import urls as urls_module
from packidx.io.sizes import parse_size

_DEFAULT = "16GB"
_MTIME = 10**18
"""Time of change of all copies, in nanoseconds."""


def folder() -> str:
    """Return where the cache is."""
    named = os.environ.get("PACKIDX_CACHE")
    if named:
        return os.path.abspath(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "packidx")


def limit() -> int:
    """Bytes that the copies may take.

    Raises:
        OptionError: ``PACKIDX_CACHE_SIZE`` is not a size.
    """
    stated = os.environ.get("PACKIDX_CACHE_SIZE") or _DEFAULT
    bound = parse_size(stated)
    if bound is None:
        raise OptionError(f"PACKIDX_CACHE_SIZE is {stated!r}: give bytes, or a size such as 200GB")
    return bound


_stats: dict[str, storage.Stat] = {}
_checked: set[tuple[str, int]] = set()
"""Copies that were compared with their digests, by path and inode."""


def remembered_stat(url: str) -> storage.Stat:
    """`storage.stat`, asked once per process.

    Raises:
        OSError: there is no such file.
    """
    known = _stats.get(url)
    if known is None:
        known = _stats[url] = storage.stat(url)
    return known


def remember_stats(urls: Iterable[str]) -> None:
    """Ask for what `remembered_stat` will say of `urls`, many at a time; errors are left to it."""

    def ask(url: str) -> None:
        with contextlib.suppress(OSError):
            remembered_stat(url)

    storage.overlapped(ask, urls)


def forget(url: str | None = None) -> None:
    """Ask the stores anew from now on, of one file or of all, and look at all copies again."""
    if url is None:
        _stats.clear()
        _checked.clear()
    else:
        _stats.pop(url, None)


@contextlib.contextmanager
def local(path: str, version: str | None = None, *, check: bool = False) -> Iterator[str]:
    """A file of this machine with the content of `path`, there for as long as the block.

    What was opened in the block stays readable after it.

    Args:
        path: a file, which is given back as it is, or a URL.
        version: names the content, where it is known without asking the store.
        check: compare the copy with its digest, once per process.

    Raises:
        OSError: it cannot be read, or the cache cannot be written.
    """
    if not urls_module.is_url(path):
        yield path
        return

    def download(target: str) -> None:
        storage.download(path, target)
        if version is None and storage.stat(path).version != known:
            forget(path)
            raise OSError(errno.EIO, "it was replaced while it was read; start again", path)

    known = remembered_stat(path).version if version is None else version
    with made(path, known, download, check=check) as copy:
        yield copy


@contextlib.contextmanager
def made(
    source: str, version: str, make: Callable[[str], None], *, check: bool = False
) -> Iterator[str]:
    """A file of the cache, there for as long as the block; made where it is not there.

    Args:
        version: another one whenever the content is.
        make: writes the file, whose path it is given.
        check: as of `local`.

    Raises:
        OSError: the cache cannot be written.
    """
    home = os.path.join(folder(), "files", digest(source.encode(), version.encode())[:32])
    while True:
        os.makedirs(home, exist_ok=True)
        handle = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if copy := _sound(home, check):
                yield copy
                return
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, home) and not _sound(home, check):
                _make(home, make, source.rpartition("/")[2][-80:])
        finally:
            os.close(handle)


def _is_at(handle: int, home: str) -> bool:
    """Return True if an opened folder is still where it was."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(home))
    except FileNotFoundError:
        return False


def _sound(home: str, check: bool) -> str | None:
    """Return the copy in a folder, marked as used now; None if it is missing or damaged."""
    for name in os.listdir(home):
        copy = os.path.join(home, name)
        status, sha256 = os.stat(copy), name.partition("-")[0]
        known = copy, status.st_ino
        is_whole = len(sha256) == 64 and status.st_mtime_ns == _MTIME
        if is_whole and check and known not in _checked:
            is_whole = file_digest(copy) == sha256
            _checked.update([known] if is_whole else ())
        if is_whole:
            os.utime(copy, ns=(time.time_ns(), _MTIME))
            return copy
    return None


def _make(home: str, make: Callable[[str], None], name: str) -> None:
    """Make the copy of a folder, which is locked, in place of all that is in it."""
    for other in os.listdir(home):
        os.unlink(os.path.join(home, other))
    begun = os.path.join(home, "begun")
    try:
        with files.naming(begun):
            make(begun)
        _make_room(os.path.dirname(home))
        os.utime(begun, ns=(time.time_ns(), _MTIME))
        os.rename(begun, os.path.join(home, f"{file_digest(begun)}-{name}"))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _make_room(files_folder: str) -> None:
    """Remove copies, those used longest ago first, until all that is here is within the bound."""
    copies, excess = [], -limit()
    for here, _, names in os.walk(files_folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(os.path.join(here, name))
                copies.append((status.st_atime_ns, status.st_size, here))
                excess += status.st_size
    for _, size, home in sorted(copies):
        if excess > 0 and _removed(home):
            excess -= size


def _removed(home: str) -> bool:
    """Return whether a copy was removed: one in use is not."""
    try:
        handle = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(home)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def kept(
    what: str,
    parts: Sequence[str],
    make: Callable[[], dict[str, Any]],
    is_certain: Callable[[dict[str, Any]], bool] = bool,
) -> dict[str, Any]:
    """Return what `make` gives, or gave before, to whichever process.

    A cache that cannot be read or written costs some time, and no more.

    Args:
        what: names the folder.
        parts: all that decides it.
        is_certain: whether it may be kept.
    """
    home = os.path.join(folder(), what)
    path = os.path.join(home, f"{digest(*map(str.encode, parts))}.json")
    if (content := _read(path)) is not None:
        return content
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            os.makedirs(home, exist_ok=True)
            # Of several processes one makes it, and the others wait.
            stack.enter_context(files.locked(home, wait=True))
        if (content := _read(path)) is not None:
            return content
        made = make()
        if is_certain(made):
            data = orjson.dumps(made)
            with contextlib.suppress(OSError):
                files.write_atomic(path, digest(data).encode() + b"\n" + data)
        return made


def _read(path: str) -> dict[str, Any] | None:
    try:
        stated, _, data = storage.read(path).partition(b"\n")
        if stated.decode() != digest(data):
            return None
        content: dict[str, Any] = orjson.loads(data)
        return content
    except (OSError, ValueError):
        return None
