"""Durable, atomic files, and the lock of a folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from packidx.digests import digest


def fsync_path(path: str | Path) -> None:
    """Force a file's or a folder's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block: readers see the old bytes or
    the new ones, never a mix, and the old ones after an error."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    fsync_path(path.parent)


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new ones, never a mix."""
    with atomic_file(path) as file:
        file.write(data)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


@contextlib.contextmanager
def locked(folder: str | Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder's lock, if it is ours: not where another has it, or has removed the folder.

    The kernel lets go of it when the process dies.

    Args:
        wait: until nobody else has the lock.
    """
    import fcntl

    path = os.path.join(folder, ".lock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            ours = os.path.samestat(os.fstat(handle), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            ours = False
        yield ours
    finally:
        os.close(handle)


ABANDONED = 2 * 24 * 3600.0
"""Seconds without a change after which what another machine was making is nobody's any more."""


@functools.cache
def this_boot() -> str:
    """A name of this machine from its start to its end: locks taken under it are seen under it."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # no Linux
        text = platform.node()
    return digest(text.encode())[:12]


def is_older(path: str | Path, seconds: float) -> bool:
    """Whether a file, or a folder with all that is in it, has not changed for so long."""
    paths = [os.fspath(path)]
    for here, folders, names in os.walk(path):
        paths += (os.path.join(here, name) for name in (*folders, *names))
    last = 0.0
    for each in paths:
        with contextlib.suppress(FileNotFoundError):
            last = max(last, os.stat(each).st_mtime)
    return time.time() - last > seconds


def may_be_dead(path: str | Path, boot: str | None) -> bool:
    """Whether what nobody has locked is abandoned: locks of other machines may not be seen.

    Args:
        boot: `this_boot` of the machine that it ran on; None: of this one.
    """
    return boot in (None, this_boot()) or is_older(path, ABANDONED)


def remove_tree(path: str | Path) -> None:
    """Delete a folder that packidx made, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
