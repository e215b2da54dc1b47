"""Files that must lie below a media root, opened so that they certainly do.

Between a look at a path and its opening, any folder in it may be exchanged for a link. So the
kernel is asked where the opened file lies and what it is, and nothing is read before.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from dataclasses import dataclass

from packidx.errors import BadRecord, SourceError
from packidx.io import urls

_SNAPSHOT = re.compile(r"(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/[^/]+(?:/|$)", re.DOTALL)
_HAS_PROC = os.path.isdir("/proc/self/fd")  # Linux


@dataclass(frozen=True, slots=True)
class InRoot:
    """A path of this machine, or ``path.lmdb::key``, that must not lead out of a folder."""

    path: str
    root: str

    def __fspath__(self) -> str:
        return self.path


def open_regular(path: str, root: str | None, label: str) -> tuple[int, os.stat_result]:
    """A descriptor, for reading, of a regular file, and what the kernel says of it.

    A pipe, a device or a socket is not opened: that alone may have effects.

    Args:
        root: the folder that it must lie in; None where it may lie anywhere.

    Raises:
        BadRecord: ``media_outside_root``.
        OSError: there is no such file, it cannot be opened, or it is no regular one.
        ValueError: no file can have such a name.
    """
    _check_regular(os.stat(path))
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        _check_regular(status)
        if root is not None:
            _check_inside(_real_location(handle, path, status), root, label)
    except BaseException:
        os.close(handle)
        raise
    return handle, status


def _real_location(handle: int, path: str, status: os.stat_result) -> str:
    """The real path of what was opened as `path`."""
    if _HAS_PROC:
        return os.readlink(f"/proc/self/fd/{handle}")
    real = os.path.realpath(path)
    if not os.path.samestat(status, os.stat(real)):
        raise OSError(errno.EBUSY, "it is being exchanged")
    return real


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def _check_inside(real: str, root: str, label: str) -> None:
    # The root may be a link of the user's that leads elsewhere by now: what is remembered of it
    # can only be too strict.
    if not (is_inside(real, reach(root)) or is_inside(real, reach.__wrapped__(root))):
        raise BadRecord("media_outside_root", f"{label} is not inside the media root")


def is_inside(path: str, root: str) -> bool:
    """Whether a real path is a folder or below it."""
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


@functools.lru_cache(maxsize=1 << 14)
def reach(folder: str) -> str:
    """The real folder that what belongs to `folder` lies in: itself, or the repository whose
    snapshot in the Hub's cache it is in, where files are links to the repository's blobs."""
    match = _SNAPSHOT.match(os.path.abspath(folder))
    return os.path.realpath(match[1] if match else folder)


@functools.lru_cache(maxsize=1 << 14)
def real_folder(path: str) -> str:
    """`os.path.realpath` of a folder (or a database), remembered."""
    return os.path.realpath(path)


def real_path(path: str) -> str:
    """`os.path.realpath` of a file, its folder's remembered."""
    folder, _, name = path.rpartition("/")
    if not folder or name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    return f"{real_folder(folder)}/{name}"


def refuse_outside(path: str, folder: str) -> None:
    """Raise a SourceError where a file that a data set names leads out of its folder by a link."""
    if not urls.is_url(path) and not is_inside(os.path.realpath(path), reach(folder)):
        raise SourceError(
            f"{path} leads out of {folder} by a link, to {os.path.realpath(path)}: if it is to be "
            "read, name it as a source yourself"
        )
