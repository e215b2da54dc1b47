"""Local copies of files, shared by all processes.

<cache>/files/<key>/<bytes>-<name>  a copy of a store's file, or a compressed file's text;
                              the key is a digest of its source and version

A copy is put there whole, by one of several processes. One of another size is made again. Nothing
is removed. ``PACKIDX_CACHE`` names the folder
(default: ``packidx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``).

A file that a manifest names is compared with it. One of this machine is its own copy, compared with
its digest once per process. One of a store is copied when it is first needed, named by the digest
that the manifest states, so that the store is not asked again; several are fetched side by side.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from packidx.digests import digest_parts, file_digest, known_digest
from packidx.errors import FormatError
from packidx.io import files, storage, urls


def get_folder() -> str:
    """Return where the cache is."""
    if named := os.environ.get("PACKIDX_CACHE"):
        return os.path.abspath(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "packidx")


_stats: dict[str, storage.Stat] = {}


def remembered_stat(url: str) -> storage.Stat:
    """`storage.stat`, asked once per process."""
    if url not in _stats:
        _stats[url] = storage.stat(url)
    return _stats[url]


def forget_stats(*names: str) -> None:
    """Ask the stores anew from now on, about some files or all."""
    for url in names or list(_stats):
        _stats.pop(url, None)


def fetch_copy(url: str, version: str | None = None) -> str:
    """Return the path of this machine's copy of a store's file.

    Args:
        version: names the content, where it is known without asking the store.

    Raises:
        OSError: it cannot be read, or the cache cannot be written.
    """

    def download_checked(target: str) -> None:
        storage.download_file(url, target)
        if version is None and storage.stat(url).version != known:
            forget_stats(url)
            raise OSError(errno.EIO, "it was replaced while it was read; start again", url)

    known = remembered_stat(url).version if version is None else version
    return make_copy(url, known, download_checked)


def make_copy(source: str, version: str, make: Callable[[str], None]) -> str:
    """Return the path of a file of the cache, made if it is missing or of another size.

    Args:
        source: names it, together with `version`, which is another one whenever the content is.
        make: writes the file, whose path it is given.

    Raises:
        OSError: the cache cannot be written.
    """
    home = os.path.join(get_folder(), "files", digest_parts(source.encode(), version.encode())[:32])
    if copy := _find_whole(home):
        return copy
    os.makedirs(home, exist_ok=True)
    with files.hold_lock(home, wait=True):
        if copy := _find_whole(home):
            return copy
        begun = os.path.join(home, ".begun")
        try:
            with files.name_in_errors(begun):
                make(begun)
            name = f"{os.path.getsize(begun)}-{source.rpartition('/')[2][-40:]}"
            os.replace(begun, os.path.join(home, name))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(begun)
            raise
        return os.path.join(home, name)


def _find_whole(home: str) -> str | None:
    """Return the copy in a folder that has the size in its name; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(home):
            copy = os.path.join(home, name)
            if name.partition("-")[0] == str(os.path.getsize(copy)):
                return copy
    return None


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
            copy = fetch_copy(file.path, file.sha256)
        nbytes = os.path.getsize(copy)
        if file.nbytes not in (None, nbytes):
            wrong = f"has {nbytes} bytes, its manifest says {file.nbytes}"
        elif file.sha256 is None or file.sha256 == known_digest(copy):  # once per process
            return copy
        else:
            wrong = "has other content than its manifest's sha256"
        if is_remote:
            os.unlink(copy)  # the next reader asks the store again
    except FileNotFoundError:
        wrong = "is missing"
    raise FormatError(f"{file.path} {wrong}: it is damaged or being replaced; write it again")


def local_copies(files: Sequence[StoredFile]) -> list[str]:
    """Return `local_copy` of several files."""
    return storage.map_overlapped(local_copy, files)


class Content(NamedTuple):
    """Size and SHA-256 of a file."""

    nbytes: int
    sha256: str


def content_of(path: str) -> Content:
    """Hash what is at `path` now: of a URL, what the store has, not a copy. Raise an OSError if it
    cannot be read."""
    if not urls.is_url(path):
        return Content(os.path.getsize(path), file_digest(path))
    hasher, nbytes = hashlib.sha256(), 0
    while nbytes % _BLOCK == 0 and (block := storage.read_range(path, nbytes, _BLOCK)):
        hasher.update(block)
        nbytes += len(block)
    return Content(nbytes, hasher.hexdigest())
