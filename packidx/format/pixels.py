"""Kept pixels: what images become for a vision tower, decoded and resized once, in an SQLite file.

An image is known by the digest of its file's bytes, wherever it lies and however often: nothing is
looked up by a path. Bytes of patches are compressed with Zstandard, and compared with their CRC-32
when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.errors import FormatError, OptionError

NAME = "pixels.sqlite"
VERSION = 1
"""SQLite's ``user_version``."""
_APPLICATION = 0x7061636B
"""SQLite's ``application_id``."""
_TABLES = f"""
PRAGMA page_size = {1 << 16};
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (
    key BLOB NOT NULL, height INTEGER NOT NULL, width INTEGER NOT NULL, mode TEXT NOT NULL,
    form TEXT, t INTEGER NOT NULL, h INTEGER NOT NULL, w INTEGER NOT NULL, crc32 INTEGER NOT NULL,
    patches BLOB NOT NULL
);
CREATE UNIQUE INDEX by_key ON images (key);
"""
_ADD = "INSERT OR IGNORE INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FIND = "SELECT height, width, mode, form, t, h, w, crc32, patches FROM images WHERE key = ?"
_PATIENCE = 600.0  # seconds that a writer waits for another one
_ZSTD = pa.Codec("zstd", 1)


class KeptPixels(NamedTuple):
    """What is kept of one image."""

    height: int
    """In pixels, upright."""
    width: int
    mode: str
    """Pillow's, of the image as it is opened."""
    form: str | None
    """Of its file: ``"JPEG"``."""
    t: int
    h: int
    w: int
    """Patches: time, height, width."""
    crc32: int
    patches: bytes

    def read(self, row_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes of the patches, uint8 ``[patches, row_bytes]``.

        Raises:
            FormatError: they are damaged.
        """
        if zlib.crc32(self.patches) != self.crc32:
            raise FormatError("the pixels that were kept of an image are damaged: keep them anew")
        rows = self.t * self.h * self.w
        content = _ZSTD.decompress(self.patches, rows * row_bytes)
        return np.frombuffer(content, np.uint8).reshape(rows, row_bytes)


def key_of(content: bytes) -> bytes:
    """Return what an image is known by: a digest of its file's bytes."""
    return hashlib.sha256(content).digest()[:16]


def kept(
    height: int, width: int, mode: str, form: str | None, grid: list[int], patches: NDArray[Any]
) -> KeptPixels:
    """Return what is kept of one image, whose patches are uint8 ``[patches, row_bytes]``."""
    content = _ZSTD.compress(np.ascontiguousarray(patches), asbytes=True)
    t, h, w = grid
    return KeptPixels(height, width, mode, form, t, h, w, zlib.crc32(content), content)


class PixelStore:
    """Finds the pixels of images by their files' bytes. It pickles small.

    Args:
        folder: of them.

    Attributes:
        settings: of the image processor that they were made with.

    Raises:
        FormatError: there are none.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._connections: dict[int, sqlite3.Connection] = {}
        stated = [self._rows(f"PRAGMA {name}") for name in ("application_id", "user_version")]
        if stated != [[(_APPLICATION,)], [(VERSION,)]]:
            raise FormatError(f"{self._path} holds no pixels that this packidx reads")
        settings = self._rows("SELECT name, value FROM settings")
        self.settings = {name: json.loads(value) for name, value in settings}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    @classmethod
    def begin(cls, folder: str, settings: Mapping[str, Any]) -> PixelStore:
        """Return the folder's store, made first where there is none."""
        place = os.path.join(folder, NAME)
        if not os.path.exists(place):
            unfinished = f"{place}.{os.getpid()}"
            with contextlib.closing(sqlite3.connect(unfinished)) as connection, connection:
                connection.executescript(_TABLES)
                rows = [(name, json.dumps(value)) for name, value in settings.items()]
                connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)
            os.replace(unfinished, place)
        return cls(folder)

    def find(self, key: bytes) -> KeptPixels | None:
        """Return what was kept of an image; None where nothing was.

        Raises:
            FormatError: the file is damaged, or is not there any more.
        """
        rows = self._rows(_FIND, key)
        return KeptPixels(*rows[0]) if rows else None

    def holds(self, key: bytes) -> bool:
        """Return whether anything was kept of an image."""
        return bool(self._rows("SELECT 1 FROM images WHERE key = ?", key))

    def add(self, images: Iterable[tuple[bytes, KeptPixels]]) -> int:
        """Write images, all or none; return how many were not there.

        Raises:
            OptionError: the file cannot be written.
        """
        rows = [(key, *each) for key, each in images]
        try:
            with (
                contextlib.closing(sqlite3.connect(self._path, _PATIENCE)) as connection,
                connection,
            ):
                return connection.executemany(_ADD, rows).rowcount if rows else 0
        except sqlite3.Error as error:
            raise OptionError(f"{self._path} cannot be written: {error}") from None

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM images INDEXED BY by_key")[0][0])

    @property
    def _path(self) -> str:
        return os.path.join(self.folder, NAME)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        process = os.getpid()  # a connection must not be used by a child that is forked
        try:
            if process not in self._connections:
                place = f"{Path(self._path).absolute().as_uri()}?mode=ro"
                self._connections = {
                    process: sqlite3.connect(place, _PATIENCE, uri=True, check_same_thread=False)
                }
            return self._connections[process].execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise FormatError(f"{self._path} cannot be read: {error}") from None
