"""What all processes keep: local copies of files, of a bounded total size, and answers as JSON.

<cache>/files/<digest>-<name> a copy of a store's file, or a compressed file's text; the digest is
                              of its source and version: it never changes
<cache>/files/.<digest>       what there is of it so far, locked by the process that is making it
<cache>/<what>/<digest>.json  an answer that takes seconds to find, and the digest of its content;
                              the digest in its name is of all that decides it

A copy in use is locked (shared) and not removed. Where the bound is reached, what was used longest
ago goes first; what a killed process had begun to download goes at once. ``PACKIDX_CACHE`` names
the folder (default: ``packidx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``), ``PACKIDX_CACHE_SIZE`` the
bound (default 16GB).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import orjson

from packidx.digests import digest
from packidx.errors import OptionError
from packidx.io import files, storage
from packidx.io import urls as urls_module
from packidx.io.sizes import parse_size

_DEFAULT = "16GB"


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
    """Ask the stores anew from now on, of one file or of all."""
    if url is None:
        _stats.clear()
    else:
        _stats.pop(url, None)


class _Replaced(Exception):
    """An object is no longer the one whose version was asked for."""


@contextlib.contextmanager
def local(path: str, version: str | None = None) -> Iterator[str]:
    """A file of this machine with the content of `path`, there for as long as the block.

    What was opened in the block stays readable after it.

    Args:
        path: a file, which is given back as it is, or a URL.
        version: names the content, where it is known without asking the store.

    An object that is replaced while it is downloaded is downloaded again, if `version` is None.

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
            raise _Replaced

    known = remembered_stat(path).version if version is None else version
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(made(path, known, download))
        except _Replaced:
            copy = stack.enter_context(local(path))
        yield copy


@contextlib.contextmanager
def made(source: str, version: str, make: Callable[[str], None]) -> Iterator[str]:
    """A file of the cache, there for as long as the block; made where it is not there.

    Args:
        version: another one whenever the content is.
        make: writes the file, whose path it is given.

    Raises:
        OSError: the cache cannot be written.
    """
    name = f"{digest(source.encode(), version.encode())[:32]}-{source.rpartition('/')[2][-80:]}"
    copy = os.path.join(folder(), "files", name)
    while (handle := _held(copy)) is None:
        _make(copy, make)
    try:
        # When it was used; its time of change stays, since readers know it by that.
        os.utime(copy, ns=(time.time_ns(), os.fstat(handle).st_mtime_ns))
        yield copy
    finally:
        os.close(handle)


def _held(copy: str) -> int | None:
    """A handle of a copy, locked against its removal; None where there is none."""
    try:
        handle = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(handle, fcntl.LOCK_SH)
    try:
        if os.path.samestat(os.fstat(handle), os.stat(copy)):
            return handle
    except FileNotFoundError:
        pass
    os.close(handle)  # removed before the lock was ours
    return None


def _make(copy: str, make: Callable[[str], None]) -> None:
    """Make a copy, unless another process has done it meanwhile."""
    home, name = os.path.split(copy)
    os.makedirs(home, exist_ok=True)
    begun = os.path.join(home, f".{name.partition('-')[0]}")
    with _locked(begun) as file:
        try:
            if os.path.exists(copy):
                return
            file.truncate(0)
            make(begun)
            _make_room(home)
            os.rename(begun, copy)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(begun)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[IO[bytes]]:
    """A file of this process alone, made if need be, for as long as the block."""
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_there = False
            with contextlib.suppress(FileNotFoundError):  # removed before the lock was ours
                is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            if is_there:
                yield file
                return


def _make_room(home: str) -> None:
    """Remove copies, those used longest ago first, until all that is here is within the bound.

    What is being downloaded counts, and stays; what a dead process had begun goes first.
    """
    copies, excess = [], -limit()
    for entry in os.scandir(home):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat()
            excess += status.st_size
            is_copy = not entry.name.startswith(".")
            copies.append((is_copy, status.st_atime_ns, status.st_size, entry.path))
    for is_copy, _, size, path in sorted(copies):
        if (excess > 0 or not is_copy) and _removed(path):
            excess -= size


def _removed(path: str) -> bool:
    """Return whether a file was removed: one in use is not."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
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
