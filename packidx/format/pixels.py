"""Kept pixels: what images become for a vision tower, decoded and resized once, in an SQLite file.

An image is known by the digest of its file's bytes, wherever it lies and however often: nothing is
looked up by a path. Bytes of patches are compressed with Zstandard; all of a row is compared with
its CRC-32 when it is read.
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
from packidx.io.files import locked

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
_FIND = "SELECT * FROM images WHERE key = ?"
OWN = {NAME, f"{NAME}-journal", f".{NAME}.new", f".{NAME}.new-journal", ".lock"}
"""Files of a folder of pixels, those of a killed run among them."""
_PATIENCE = 600.0  # seconds that a writer waits for another one
_ZSTD = pa.Codec("zstd", 1)


class KeptPixels(NamedTuple):
    """What is kept of one image."""

    key: bytes
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
        if self.sum() != self.crc32:
            raise FormatError("the pixels that were kept of an image are damaged: keep them anew")
        rows = self.t * self.h * self.w
        content = _ZSTD.decompress(self.patches, rows * row_bytes)
        return np.frombuffer(content, np.uint8).reshape(rows, row_bytes)

    def sum(self) -> int:
        """Return the CRC-32 of all but itself."""
        head = repr(
            (self.key, self.height, self.width, self.mode, self.form, self.t, self.h, self.w)
        )
        return zlib.crc32(self.patches, zlib.crc32(head.encode()))


def key_of(content: bytes) -> bytes:
    """Return what an image is known by: a digest of its file's bytes."""
    return hashlib.sha256(content).digest()[:16]


def kept(
    key: bytes,
    height: int,
    width: int,
    mode: str,
    form: str | None,
    grid: list[int],
    patches: NDArray[Any],
) -> KeptPixels:
    """Return what is kept of one image, whose patches are uint8 ``[patches, row_bytes]``."""
    content = _ZSTD.compress(np.ascontiguousarray(patches), asbytes=True)
    t, h, w = grid
    bare = KeptPixels(key, height, width, mode, form, t, h, w, 0, content)
    return bare._replace(crc32=bare.sum())


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
        try:
            self.settings = {name: json.loads(value) for name, value in settings}
        except (TypeError, ValueError) as error:
            raise FormatError(f"{self._path} has settings that are damaged ({error})") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    @classmethod
    def begin(cls, folder: str, settings: Mapping[str, Any]) -> PixelStore:
        """Return the folder's store, made first where there is none.

        Raises:
            FormatError: there is another file, or one that is damaged.
            OptionError: it cannot be written.
        """
        place, unfinished = os.path.join(folder, NAME), os.path.join(folder, f".{NAME}.new")
        try:
            with locked(folder, wait=True):
                if not os.path.exists(place):
                    for left in (unfinished, f"{unfinished}-journal"):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(left)
                    with contextlib.closing(sqlite3.connect(unfinished)) as made, made:
                        made.executescript(_TABLES)
                        rows = [(name, json.dumps(value)) for name, value in settings.items()]
                        made.executemany("INSERT INTO settings VALUES (?, ?)", rows)
                    os.replace(unfinished, place)
        except (OSError, sqlite3.Error) as error:
            raise OptionError(f"{place} cannot be written: {error}") from None
        return cls(folder)

    def find(self, key: bytes) -> KeptPixels | None:
        """Return what was kept of an image; None where nothing was.

        Raises:
            FormatError: the file is damaged, or is not there any more.
        """
        rows = self._rows(_FIND, key)
        found = KeptPixels(*rows[0]) if rows else None
        if found is not None and (found.key != key or not isinstance(found.patches, bytes)):
            raise FormatError(f"{self._path} is damaged: its index leads to another image")
        return found

    def holds(self, key: bytes) -> bool:
        """Return whether anything was kept of an image."""
        return bool(self._rows("SELECT 1 FROM images WHERE key = ?", key))

    def add(self, images: Iterable[KeptPixels]) -> int:
        """Write images, all or none; return how many were not there.

        Raises:
            OptionError: the file cannot be written.
        """
        rows = list(images)
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
                if os.path.exists(f"{self._path}-journal") and os.access(self._path, os.W_OK):
                    # What a killed writer has begun is rolled back by whoever may write.
                    with contextlib.closing(sqlite3.connect(self._path, _PATIENCE)) as writer:
                        writer.execute("SELECT count(*) FROM settings").fetchall()
                place = f"{Path(self._path).absolute().as_uri()}?mode=ro"
                self._connections = {
                    process: sqlite3.connect(place, _PATIENCE, uri=True, check_same_thread=False)
                }
            return self._connections[process].execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise FormatError(f"{self._path} cannot be read: {error}") from None
