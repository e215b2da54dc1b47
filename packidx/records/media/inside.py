"""Files that must lie below a media root, opened so that they certainly do.

Between a look at a path and its opening, any folder in it may be exchanged for a link. So the
kernel is asked where the opened file lies and what it is, and nothing is read before.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from dataclasses import dataclass

from packidx.errors import BadRecord

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
    if not (is_inside(real, real_folder(root)) or is_inside(real, os.path.realpath(root))):
        raise BadRecord("media_outside_root", f"{label} is not inside the media root")


def is_inside(path: str, root: str) -> bool:
    """Whether a real path is a folder or below it."""
    return path == root or path.startswith(root if root.endswith(os.sep) else root + os.sep)


@functools.lru_cache(maxsize=1 << 14)
def real_folder(path: str) -> str:
    """`os.path.realpath` of a folder (or a database), remembered."""
    return os.path.realpath(path)
