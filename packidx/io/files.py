"""Durable, atomic files and the hashes that name their content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def canonical_json(value: Any) -> bytes:
    """`value` as the one JSON text that hashes are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(*parts: bytes) -> str:
    """SHA-256 over `parts`, each preceded by its length so that no two lists collide."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def array_digest(array: pa.Array | pa.ChunkedArray) -> str:
    """SHA-256 of an Arrow column's logical content, whatever its chunks, offsets or null fill."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # zero chunks
            array = pa.concat_arrays(array.chunks) if array.chunks else pa.array([], array.type)
    kind = str(array.type).encode()
    valid = np.packbits(np.asarray(array.is_valid())).tobytes()
    return digest(kind, len(array).to_bytes(8, "little"), valid, *_content(array))


def _content(array: pa.Array) -> Iterator[bytes]:
    if pa.types.is_struct(array.type):
        yield from (array_digest(child).encode() for child in array.flatten())
    elif pa.types.is_list(array.type):
        lengths = array.value_lengths().fill_null(0)
        yield np.ascontiguousarray(lengths).tobytes()
        yield array_digest(array.flatten()).encode()
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        filled = array.cast(pa.large_string()).fill_null("")
        offsets = np.frombuffer(filled.buffers()[1], np.int64)
        offsets = offsets[filled.offset : filled.offset + len(filled) + 1]
        if len(filled):
            yield (offsets - offsets[0]).tobytes()
            data = filled.buffers()[2]
            yield bytes(memoryview(data)[offsets[0] : offsets[-1]]) if data else b""
    elif pa.types.is_null(array.type):
        return
    else:
        yield np.ascontiguousarray(array.fill_null(0)).tobytes()


class ColumnDigest:
    """SHA-256 of a column's logical content that comes in runs of rows, however it is cut up.

    Args:
        kind: name of the column's type; it is hashed, too.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._rows = 0
        self._is_zero = True  # so far
        self._zeros = 0  # bytes of zeros that are not hashed
        self._values = hashlib.sha256()
        self._nulls = hashlib.sha256()
        self._sizes = hashlib.sha256()
        self._children: dict[int, ColumnDigest] = {}

    def update(self, array: pa.Array) -> None:
        """Take the next rows, all of the same type as before."""
        if array.null_count:
            absent = np.flatnonzero(np.asarray(array.is_null())) + self._rows
            self._nulls.update(absent.astype("<i8").tobytes())
        self._rows += len(array)
        if pa.types.is_struct(array.type):
            self._descend(array.flatten())
        elif pa.types.is_list(array.type):
            self._sizes.update(
                np.asarray(array.value_lengths().fill_null(0)).astype("<i8").tobytes()
            )
            self._descend([array.flatten()])
        elif pa.types.is_string(array.type):
            text = array.cast(pa.large_string()).fill_null("")
            offsets = np.frombuffer(text.buffers()[1], np.int64)
            offsets = offsets[text.offset : text.offset + len(text) + 1]
            self._sizes.update(np.diff(offsets).astype("<i8").tobytes())
            if len(offsets) > 1 and text.buffers()[2]:
                self._values.update(memoryview(text.buffers()[2])[offsets[0] : offsets[-1]])
        elif not pa.types.is_null(array.type):
            values = np.ascontiguousarray(array.fill_null(0) if array.null_count else array)
            self._add(values)

    def _add(self, values: NDArray[Any]) -> None:
        """Hash numbers; zeros that begin the column are only counted until another one comes."""
        if self._is_zero:
            if not values.any():
                self._zeros += values.nbytes
                return
            self._is_zero = False
            for start in range(0, self._zeros, 1 << 20):
                self._values.update(bytes(min(1 << 20, self._zeros - start)))
            self._zeros = 0
        self._values.update(values.data)

    def _descend(self, arrays: list[pa.Array]) -> None:
        for number, child in enumerate(arrays):
            self._children.setdefault(number, ColumnDigest(str(child.type))).update(child)

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        hashers = (self._values, self._nulls, self._sizes)
        own = [hasher.digest() for hasher in hashers]
        children = [child.hexdigest().encode() for child in self._children.values()]
        numbers = (one.to_bytes(8, "little") for one in (self._rows, self._zeros))
        return digest(self._kind.encode(), *numbers, *own, *children)


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
def locked(folder: str | Path) -> Iterator[None]:
    """Hold `folder`'s writer lock; the kernel lets go of it when the process dies."""
    import fcntl

    path = Path(folder) / ".lock"
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def remove_tree(path: str | Path) -> None:
    """Delete a folder that packidx made, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
