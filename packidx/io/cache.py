"""Local copies of files, shared by all processes.

<cache>/files/<key>/<sha256>-<bytes>-<name>  a copy of a store's file, or a compressed file's text;
                              the key is a digest of its source and version

A copy is put there whole, by one of several processes. One of another size is made again, and one
of another digest where that is looked at. Nothing is removed. ``PACKIDX_CACHE`` names the folder
(default: ``packidx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from packidx.digests import digest, file_digest, known_digest
from packidx.io import files, storage


def folder() -> str:
    """Return where the cache is."""
    if named := os.environ.get("PACKIDX_CACHE"):
        return os.path.abspath(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "packidx")


_stats: dict[str, storage.Stat] = {}


def remembered_stat(url: str) -> storage.Stat:
    """`storage.stat`, asked once per process.

    Raises:
        OSError: there is no such file.
    """
    if url not in _stats:
        _stats[url] = storage.stat(url)
    return _stats[url]


def forget(*urls: str) -> None:
    """Ask the stores anew from now on, about some files or all."""
    for url in urls or list(_stats):
        _stats.pop(url, None)


def local(url: str, version: str | None = None, *, check: bool = False) -> str:
    """Return the path of this machine's copy of a store's file.

    Args:
        url: the file.
        version: names the content, where it is known without asking the store.
        check: as in `made`.

    Raises:
        OSError: it cannot be read, or the cache cannot be written.
    """

    def download(target: str) -> None:
        storage.download(url, target)
        if version is None and storage.stat(url).version != known:
            forget(url)
            raise OSError(errno.EIO, "it was replaced while it was read; start again", url)

    known = remembered_stat(url).version if version is None else version
    return made(url, known, download, check=check)


def made(source: str, version: str, make: Callable[[str], None], *, check: bool = False) -> str:
    """Return the path of a file of the cache, made if it is missing or damaged.

    Args:
        source: names it, together with `version`.
        version: another one whenever the content is.
        make: writes the file, whose path it is given.
        check: compare the content with its digest, once per process.

    Raises:
        OSError: the cache cannot be written.
    """
    home = os.path.join(folder(), "files", digest(source.encode(), version.encode())[:32])
    if copy := _sound(home, check):
        return copy
    os.makedirs(home, exist_ok=True)
    with files.locked(home, wait=True):
        if copy := _sound(home, check):
            return copy
        begun = os.path.join(home, ".begun")
        try:
            with files.naming(begun):
                make(begun)
            name = f"{os.path.getsize(begun)}-{source.rpartition('/')[2][-40:]}"
            copy = os.path.join(home, f"{file_digest(begun)}-{name}")
            os.replace(begun, copy)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(begun)
            raise
        return copy


def _sound(home: str, check: bool) -> str | None:
    """Return the copy in a folder; None if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(home):
            copy, (sha256, nbytes, *_) = os.path.join(home, name), [*name.split("-"), ""]
            if nbytes == str(os.path.getsize(copy)) and (not check or known_digest(copy) == sha256):
                return copy
    return None
