"""SHA-256 of content: canonical JSON, bytes, files, columns."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def canonical_json(value: Any) -> bytes:
    """`value` as the one JSON text that hashes are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_parts(*parts: bytes) -> str:
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


def known_digest(path: str) -> str:
    """`file_digest`, remembered by the process for as long as the file is not written."""
    status = os.stat(path)
    return _remember_digest(path, status.st_ino, status.st_ctime_ns)


@functools.lru_cache(1 << 14)
def _remember_digest(path: str, inode: int, ctime: int) -> str:
    return file_digest(path)


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
            self._update_children(array.flatten())
        elif pa.types.is_list(array.type):
            self._sizes.update(
                np.asarray(array.value_lengths().fill_null(0)).astype("<i8").tobytes()
            )
            self._update_children([array.flatten()])
        elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            text = array.cast(pa.large_string()).fill_null("")
            offsets = np.frombuffer(text.buffers()[1], np.int64)
            offsets = offsets[text.offset : text.offset + len(text) + 1]
            self._sizes.update(np.diff(offsets).astype("<i8").tobytes())
            if len(offsets) > 1 and text.buffers()[2]:
                self._values.update(memoryview(text.buffers()[2])[offsets[0] : offsets[-1]])
        elif not pa.types.is_null(array.type):
            values = np.ascontiguousarray(array.fill_null(0) if array.null_count else array)
            self._add_numbers(values)

    def _add_numbers(self, values: NDArray[Any]) -> None:
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

    def _update_children(self, arrays: list[pa.Array]) -> None:
        for number, child in enumerate(arrays):
            self._children.setdefault(number, ColumnDigest(str(child.type))).update(child)

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        hashers = (self._values, self._nulls, self._sizes)
        own = [hasher.digest() for hasher in hashers]
        children = [child.hexdigest().encode() for child in self._children.values()]
        numbers = (number.to_bytes(8, "little") for number in (self._rows, self._zeros))
        return digest_parts(self._kind.encode(), *numbers, *own, *children)


def column_digest(column: pa.ChunkedArray) -> str:
    """`ColumnDigest` of all of a column."""
    taken = ColumnDigest(str(column.type))
    for chunk in column.chunks:
        taken.update(chunk)
    return taken.hexdigest()
