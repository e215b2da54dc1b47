"""The lengths folder on disk: built beside its place, swapped in whole, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packidx import files, schema
from packidx.errors import OptionError
from packidx.manifest import unsound_file

MANIFEST = "manifest.json"
_OWN_FILES = re.compile(r"manifest\.json|part-\d{5,}\.parquet")
_AT_FDCWD = -100  # <fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>


def check_place(path: str) -> dict[str, Any] | None:
    """The manifest of the lengths table at `path`, None where there is nothing.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is no lengths table.
    """
    if not os.path.lexists(path):
        return None
    if not os.path.isdir(path):
        raise OptionError(f"{path} is a file: name a folder for the lengths table")
    names = sorted(os.listdir(path))
    if not names:
        return None
    manifest = _manifest(path) if MANIFEST in names else None
    if manifest is None:
        raise OptionError(
            f"{path} is not empty and no lengths table: it is left alone, so name another folder"
        )
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise OptionError(
            f"{path} also holds {foreign[0]}, which packidx did not write: move it away, "
            "or name another folder"
        )
    return manifest


def is_complete(path: str, manifest: dict[str, Any]) -> bool:
    """Whether every file of the manifest is there with its size."""
    try:
        return unsound_file(Path(path), manifest) is None
    except (OSError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """A new folder beside `path` that takes its place, whole, when the block ends well.

    Raises:
        OptionError: the folder cannot be made or put in place.
    """
    real = os.path.realpath(path)
    parent, name = os.path.split(real)
    try:
        os.makedirs(parent, exist_ok=True)
        _remove_abandoned(parent, f".{name}.new-")
        folder = tempfile.mkdtemp(prefix=f".{name}.new-", dir=parent)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        try:
            os.chmod(folder, 0o777 & ~_umask())
            with _claimed(folder) as free:
                if not free:
                    raise OptionError(f"{folder} was taken by another run: start again")
                yield folder
                files.fsync_path(folder)
                _swap(folder, real)
                files.fsync_path(parent)
        except OSError as error:
            raise _unwritable(path, error) from error
    finally:
        files.remove_tree(folder)  # the unfinished table, or the one that was replaced


@contextlib.contextmanager
def _claimed(folder: str) -> Iterator[bool]:
    """Lock a folder for as long as the block, or the process, lives; False if somebody has."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _remove_abandoned(parent: str, prefix: str) -> None:
    """Delete what runs that were killed have left behind: nobody holds its lock."""
    for name in os.listdir(parent):
        folder = os.path.join(parent, name)
        if name.startswith(prefix) and os.path.isdir(folder):
            with contextlib.suppress(FileNotFoundError), _claimed(folder) as free:
                if free:
                    files.remove_tree(folder)


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


def _manifest(path: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(manifest, dict) and manifest.get("format") == schema.LENGTHS_FORMAT:
        return manifest
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: str, error: OSError) -> OptionError:
    return OptionError(f"cannot write the lengths table to {path}: {error.strerror or error}")
