"""Local copies of files, shared by all processes.

<cache>/files/<key>/copy-<name>  a copy of a store's file, or a compressed file's text; the key is
                                 a digest of its source and version

A copy is put there whole, by one of several processes, and stays. ``PACKIDX_CACHE`` names the
folder (default: ``packidx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from packidx.digests import digest
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


def local(url: str, version: str | None = None) -> str:
    """Return the path of this machine's copy of a store's file.

    Args:
        url: the file.
        version: names the content, where it is known without asking the store.

    Raises:
        OSError: it cannot be read, or the cache cannot be written.
    """

    def download(target: str) -> None:
        storage.download(url, target)
        if version is None and storage.stat(url).version != known:
            forget(url)
            raise OSError(errno.EIO, "it was replaced while it was read; start again", url)

    known = remembered_stat(url).version if version is None else version
    return made(url, known, download)


def made(source: str, version: str, make: Callable[[str], None]) -> str:
    """Return the path of a file of the cache, made if it is missing.

    Args:
        source: names it, together with `version`.
        version: another one whenever the content is.
        make: writes the file, whose path it is given.

    Raises:
        OSError: the cache cannot be written.
    """
    home = os.path.join(folder(), "files", digest(source.encode(), version.encode())[:32])
    copy = os.path.join(home, f"copy-{source.rpartition('/')[2][-40:]}")
    if os.path.exists(copy):
        return copy
    os.makedirs(home, exist_ok=True)
    with files.locked(home, wait=True):
        begun = os.path.join(home, ".begun")
        try:
            if not os.path.exists(copy):
                with files.naming(begun):
                    make(begun)
                files.fsync_path(begun)
                os.replace(begun, copy)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(begun)
            raise
    return copy
