"""Durable, atomic files, the lock of a folder, and JSON and sizes as they are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

from packidx.errors import LimitError, OptionError

_OPEN_FILES = (errno.EMFILE, errno.ENFILE)
_SAID = os.strerror(errno.EMFILE)  # of libraries that give no number


def refuse_open_files(error: BaseException) -> None:
    """Raise a LimitError if `error` says that too many files are open: the file is not to blame."""
    if getattr(error, "errno", None) in _OPEN_FILES or _SAID in str(error):
        raise LimitError(f"{_SAID.lower()}: raise the limit, as by `ulimit -n 65536`") from None


def fsync_path(path: str | Path) -> None:
    """Force a file's or a folder's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: str | Path) -> None:
    """Make a folder if it is not there, and those above it, or raise an OptionError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OptionError(f"the folder {path} cannot be made: {error}") from None


@contextlib.contextmanager
def name_in_errors(path: str | Path) -> Iterator[None]:
    """Give errors of input and output that name no file, as of a full disk, the name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        words = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, words, str(path)) from None


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block: readers see the old bytes or
    the new ones, never a mix, and the old ones after an error."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with name_in_errors(path), os.fdopen(handle, "wb") as file:
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


def json_text(value: Any) -> bytes:
    """Return `value` as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, json_text(value))


@contextlib.contextmanager
def hold_lock(folder: str | Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder's lock, if it is ours: not where another has it, or has removed the folder.

    The kernel lets go of it when the process dies.

    Args:
        wait: until the lock is free.
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


def remove_tree(path: str | Path) -> None:
    """Delete a folder that packidx made, if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def load_json(data: bytes | str) -> Any:
    """Return the value of a JSON document. Raise a ValueError if it is not valid, nested too
    deeply, holds NaN or names a key twice."""
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_refuse_twice, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.80} stands twice in one object: keep one")
    return value


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes of ``4GB``, ``500M``, ``2GiB`` or ``1000``; None of what is not a size.

    K, M, G and T are powers of 1,000, with an ``i`` of 1,024.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    power = " KMGT".index(match[2].upper() or " ")
    return int(Fraction(match[1]) * (1024 if match[3] else 1000) ** power)
