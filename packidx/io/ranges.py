"""Ranges of files: read where they lie, and only what of them is asked for.

A tar's members are looked at one after the other: the end of a medium, the next one's header and
its beginning lie side by side. So one block is fetched for all three, and the last blocks are kept
while a reader goes through the file. One that cannot be read is a SourceError.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from packidx.io import storage
from packidx.recent import Recent

_LEAD = 1024  # bytes before a place that is jumped to: the end of an image that was passed over
_MOST = 1 << 20  # bytes fetched at once where a file is read through
_KEPT = 2 << 20  # bytes
_BUFFER = 1 << 13
BLOCK = 1 << 16
"""Bytes of a request where a little is read at a place: an image's header, a tar's."""

_Read = Callable[[int, int], bytes]  # of an offset and a number of bytes


class ReadAhead:
    """A file's bytes by place, in blocks that are fetched when needed; not for several threads.

    Blocks grow while the file is read through, and are small again after a jump. What lies no more
    than `gap` ahead is read on to: that costs less than a request.

    Args:
        path: a file or a URL.
        end: no byte from here on is fetched.
        block: bytes of a block after a jump.
        gap: bytes that are not asked for and read all the same.
        head: the file's beginning, where it is known.
    """

    def __init__(
        self, path: str, end: int, block: int = BLOCK, gap: int = BLOCK, head: bytes = b""
    ) -> None:
        self.path, self.end = path, end
        self._gap = gap
        self._block = self._size = block
        self._at = len(head)  # one past the block that reaches furthest
        self._kept: Recent[int, bytes] = Recent(_KEPT)  # by offset
        if head:
            self._kept.put(0, head, len(head))

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes from `offset` on, fewer where the file ends."""
        nbytes = min(nbytes, self.end - offset)
        pieces = []
        while nbytes > 0:
            start, block = self._holding(offset, nbytes)
            piece = block[offset - start : offset - start + nbytes]
            if not piece:
                break
            pieces.append(piece)
            offset, nbytes = offset + len(piece), nbytes - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _holding(self, offset: int, nbytes: int) -> tuple[int, bytes]:
        """A block, and where it begins, that has the byte at `offset`; an empty one at the end."""
        for start, block in reversed(self._kept.items()):
            if start <= offset < start + len(block):
                return start, block
        if 0 <= offset - self._at <= self._gap:
            start = self._at
            self._size = min(2 * self._size, _MOST) if start else self._block
        else:
            start, self._size = max(0, offset - _LEAD), self._block
        wanted = min(max(self._size, offset + nbytes - start), self.end - start)
        block = read_source(self.path, start, wanted)
        self._at = max(self._at, start + len(block))
        if offset >= start + len(block):
            return offset, b""
        self._kept.put(start, block, len(block))
        return start, block

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": Recent(_KEPT), "_at": 0}


def read_source(path: str, offset: int, nbytes: int) -> bytes:
    """`storage.read_range`, with an error that is not a medium's own."""
    with storage.reading(path):
        return storage.read_range(path, offset, nbytes)


class Extent:
    """A medium that is a range of a file: `nbytes` from `offset` on; `name` is the member's."""

    __slots__ = ("name", "nbytes", "offset", "read_ahead")

    def __init__(self, read_ahead: ReadAhead, offset: int, nbytes: int, name: str = "") -> None:
        self.read_ahead, self.offset, self.nbytes, self.name = read_ahead, offset, nbytes, name

    def open(self) -> io.BufferedReader:
        """It as a file of its own, of which only what is looked at is read."""
        whole = partial(read_source, self.read_ahead.path)  # past what is kept: no whole media are
        return io.BufferedReader(
            _RangeFile(self.offset, self.nbytes, self.read_ahead.read, whole), _BUFFER
        )

    def peek(self) -> bytes:
        """All of it, from the blocks that are kept where it is in them."""
        return self.read_ahead.read(self.offset, self.nbytes)

    def read(self) -> bytes:
        """All of it, by one request."""
        return read_source(self.read_ahead.path, self.offset, self.nbytes)


class _RangeFile(io.RawIOBase):
    """A run of a file's bytes as a raw file that can seek.

    Args:
        offset: of its first byte.
        nbytes: its size.
        read: the bytes from an offset in the file on.
        read_all: the same for all that is left, where there is another way.
    """

    def __init__(
        self, offset: int, nbytes: int, read: _Read, read_all: _Read | None = None
    ) -> None:
        self._offset, self._nbytes, self._at = offset, nbytes, 0
        self._read, self._read_all = read, read_all or read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readall(self) -> bytes:
        data = self._read_all(self._offset + self._at, max(0, self._nbytes - self._at))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._nbytes - self._at)
        if wanted <= 0:
            return 0
        data = self._read(self._offset + self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
