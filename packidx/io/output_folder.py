"""A folder of output: built beside its place, swapped in whole, or not at all.

.NAME.new-<job>/        beside the folder NAME, locked by the run that works on it
  table/                what is being built: it becomes NAME
  notes/                what is finished of it, for the next run of the same job

What goes into an object store is built in the cache's folder, NAME being a digest of the URL, and
then uploaded (`packidx.io.publish`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packidx.errors import OptionError
from packidx.io import files, urls

if TYPE_CHECKING:
    from packidx.io.publish import Told

_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_ATTEMPTS = 20  # a second in all: who removes an abandoned folder locks it for an instant
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job builds its output."""

    table: str
    """Folder that becomes the output."""
    notes: str
    """Folder of notes on what is finished."""
    job: str
    """Digest of everything that decides the output."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a table is built beside its place, named by the job so that the next run finds it."""

    place: Place
    discarded: int
    """Finished parts of killed runs with other settings, which were removed."""


@contextlib.contextmanager
def replacing(
    path: str,
    job: str,
    what: str,
    told: Told | None = None,
    manifest_format: str | None = None,
) -> Iterator[Staging]:
    """A new folder beside `path` that takes its place, whole, when the block ends well.

    When it does not, or the process is killed, finished parts stay: the next run of the same job
    finds them, one of another job to the same `path` removes them.

    Args:
        path: the table's folder, or a URL of one.
        job: digest of everything that decides the table.
        what: what it is, for the error.
        told: called with how many files of how many are uploaded.
        manifest_format: of its ``manifest.json``, by which a copy in a store is known as well.

    Raises:
        OptionError: the folder cannot be made or put in place, or another run is making it.
    """
    if not path:  # which is the working folder, to some functions, and nothing, to others
        raise OptionError(f"the path of the {what} is empty: name a folder")
    real = _home(path)
    parent, name = os.path.split(real)
    folder = os.path.join(parent, f".{name}.new-{job[:16]}")
    place = Place(os.path.join(folder, "table"), os.path.join(folder, "notes"), job)
    try:
        os.makedirs(parent, exist_ok=True)
        discarded = _remove_abandoned(parent, name, os.path.basename(folder))
        with _claimed(folder, path):
            try:
                os.makedirs(place.table, exist_ok=True)
                os.makedirs(place.notes, exist_ok=True)
                yield Staging(place, discarded)
                if urls.is_url(path):
                    from packidx.io.publish import publish

                    publish(place.table, path, what, told, manifest_format)
                else:
                    files.fsync_path(place.table)
                    _swap(place.table, real)
                    files.fsync_path(parent)
                files.remove_tree(folder)  # with the table that was replaced
            except BaseException:
                if not _num_finished(folder):
                    files.remove_tree(folder)
                raise
    except OSError as error:
        raise _unwritable(path, what, error) from error


@contextlib.contextmanager
def _claimed(folder: str, path: str) -> Iterator[None]:
    """Make a folder if need be and lock it for as long as the block, or the process, lives."""
    for _ in range(_ATTEMPTS):
        os.makedirs(folder, exist_ok=True)
        with _locked(folder) as free:
            if free:
                yield
                return
        time.sleep(_PAUSE)
    raise OptionError(
        f"another run is making this very table at {path}: wait for it, or name another folder"
    )


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Lock a folder for as long as the block, or the process, lives.

    False where somebody has locked it, or removed it before the lock was ours.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield _is_open(handle, folder)
    finally:
        os.close(handle)


def _is_open(handle: int, folder: str) -> bool:
    """Whether the folder of that name is still the one that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False


def remove_abandoned(path: str) -> int:
    """Delete what killed runs to the table at `path` have left.

    Returns:
        how many finished parts were in it.
    """
    parent, name = os.path.split(_home(path))
    return _remove_abandoned(parent, name, "") if os.path.isdir(parent) else 0


def _home(path: str) -> str:
    """What `path` would be called, were it a folder of this machine."""
    if not urls.is_url(path):
        return os.path.realpath(path)
    from packidx.io.publish import home

    return home(path)


def _remove_abandoned(parent: str, name: str, own: str) -> int:
    """The same without the folder called `own`; what a living run has is locked."""
    staging = re.compile(re.escape(f".{name}.new-") + "[0-9a-f]{16}")
    discarded = 0
    for entry in os.listdir(parent):
        folder = os.path.join(parent, entry)
        if entry == own or not staging.fullmatch(entry) or not os.path.isdir(folder):
            continue
        with _locked(folder) as free:
            if free:
                discarded += _num_finished(folder)
                files.remove_tree(folder)
    return discarded


def _num_finished(folder: str) -> int:
    try:
        return len([name for name in os.listdir(os.path.join(folder, "notes")) if name[0] != "."])
    except FileNotFoundError:
        return 0


def _swap(folder: str, path: str) -> None:
    """Put `folder` at `path`; what was there is then at `folder`."""
    if not os.path.isdir(path) or not os.listdir(path):
        os.rename(folder, path)
    elif not _exchange(folder, path):
        # No such system call here: for an instant there is no table, but never half a one.
        old = f"{folder}.old"
        os.rename(path, old)
        os.rename(folder, path)
        os.rename(old, folder)


def _exchange(one: str, other: str) -> bool:
    """Swap two folders atomically (renameat2); False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)


def _unwritable(path: str, what: str, error: OSError) -> OptionError:
    where = f" ({error.filename})" if urls.is_url(path) and error.filename else ""
    return OptionError(f"cannot write the {what} to {path}: {error.strerror or error}{where}")
