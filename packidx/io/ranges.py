"""Ranges of files: read where they lie, and only what of them is asked for.

A file of this machine is read through the system's page cache. Of one in a store, fsspec keeps the
blocks that were read last: of a tar, the end of a medium, the next one's header and its beginning
lie in one. What cannot be read is a SourceError.
"""

from __future__ import annotations

import functools
import io
import os
from dataclasses import dataclass, field
from typing import Any

from packidx.io import storage

BLOCK = 1 << 16
"""Bytes of a request where a little is read at a place: an image's header, a tar's."""
_KEPT = 1 << 22  # bytes of a store's file
_BUFFER = 1 << 14


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of a file, as a medium is in a tar. It holds no file open."""

    path: str
    """The file, or its URL."""
    offset: int
    nbytes: int
    name: str = ""
    """The member's."""
    blocks: Any = field(default=None, compare=False, repr=False)
    """The blocks that were last read of a store's file (`blocks_of`)."""

    def open(self) -> io.BufferedReader:
        """Return a file that reads only what is looked at."""
        return io.BufferedReader(_RangeFile(self), _BUFFER)

    def peek(self, start: int, nbytes: int) -> bytes:
        """Return bytes from `start` on, fewer at the end, from the blocks if there are any."""
        first, nbytes = self.offset + start, min(nbytes, self.nbytes - start)
        if self.blocks is None:
            return read_source(self.path, first, nbytes)
        return bytes(self.blocks._fetch(first, first + nbytes))

    def read(self) -> bytes:
        """Return all bytes, by one request."""
        return read_source(self.path, self.offset, self.nbytes)


class _RangeFile(io.RawIOBase):
    """An extent as a raw file that can seek."""

    def __init__(self, extent: Extent) -> None:
        self._extent, self._at = extent, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._extent.nbytes)[whence])
        return self._at

    def readall(self) -> bytes:
        data = self._extent.read()[self._at :]
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        nbytes, blocks = len(buffer), self._extent.blocks
        if blocks is not None:  # up to the end of a block: the next one may not be needed
            size = blocks.blocksize
            nbytes = min(nbytes, size - (self._extent.offset + self._at) % size)
        data = self._extent.peek(self._at, nbytes)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_source(path: str, offset: int, nbytes: int) -> bytes:
    """`storage.read_range`, with an error that is not a medium's own."""
    with storage.raise_unreadable(path):
        return storage.read_range(path, offset, nbytes)


def blocks_of(url: str, end: int, block: int = BLOCK, head: bytes = b"") -> Any:
    """Return the blocks that were last read of a store's file. Threads may share them.

    Args:
        end: no byte from here on is given.
        block: bytes of a request.
        head: the first block, if it is known.
    """
    from fsspec.caching import BlockCache

    return BlockCache(block, functools.partial(_fetch_range, url, end, head), end, _KEPT // block)


def _fetch_range(url: str, end: int, head: bytes, start: int, stop: int) -> bytes:
    if stop <= len(head):
        return head[start:stop]
    return read_source(url, start, min(stop, end) - start)
