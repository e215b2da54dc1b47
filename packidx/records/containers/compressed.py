"""Compressed text: its blocks in order, and records by row without starting over each time.

A gzip stream is resumed from states that were kept on the way (zlib can copy its own, 40 KiB each).
Zstandard's decoder cannot, so reading a row before the last one starts over, unless it is among
those remembered. Uncompressed files are better to train from: there every record has an offset.
"""

from __future__ import annotations

import bisect
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from packidx.errors import BadRecord
from packidx.io.storage import unreadable
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import BLOCK, open_regular

GZIP, ZSTD = "gz", "zst"

_INPUT = 1 << 18
_STATES = 64
_REMEMBERED = 16 << 20  # bytes of records


class Text(Protocol):
    """How records stand in a stream of text. A key of what is remembered, so it can be hashed."""

    def __hash__(self) -> int: ...

    def items(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of every record."""

    def header(self, blocks: Iterator[bytes]) -> Any:
        """What is needed to decode a record."""

    def records(
        self, blocks: Iterator[bytes], at: int, begun: bool, header: Any
    ) -> Iterator[tuple[int, int, dict[str, Any] | BadRecord]]:
        """(offset, bytes, record) of every record."""

    def decode(self, raw: bytes, where: str, header: Any) -> dict[str, Any]:
        """The record that some bytes are."""


class _File:
    """A file read by position: a forked process must not move its parent's."""

    def __init__(self, path: str, taken: Callable[[bytes], None] | None = None) -> None:
        self.path = path
        self.closed = False
        self.at = 0
        self._taken = taken
        try:
            self._handle = open_regular(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, error) from None

    def read(self, nbytes: int | None = None) -> bytes:
        try:
            data = os.pread(self._handle, _INPUT if nbytes is None else nbytes, self.at)
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.at += len(data)
        if self._taken is not None:
            self._taken(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._handle)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


class Gzip:
    """The decompressed blocks of a gzip file; members one after the other are one stream."""

    def __init__(self, path: str, taken: Callable[[bytes], None] | None = None) -> None:
        self._file = _File(path, taken)
        self._inflate: Any = zlib.decompressobj(31)
        self._rest = b""
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            if not self._rest:
                self._rest = self._file.read()
            if self._inflate.eof and not self._next_member():
                raise StopIteration
            ended = not self._rest
            try:
                block: bytes = self._inflate.decompress(self._rest, BLOCK)
            except zlib.error as error:
                raise BrokenFile(f"the gzip stream is broken ({error}): restore the file") from None
            self._rest = self._inflate.unconsumed_tail or self._inflate.unused_data
            if block:
                self.offset += len(block)
                return block
            if ended and not self._inflate.eof:
                raise BrokenFile("the gzip stream is cut: restore the file")

    def _next_member(self) -> bool:
        while self._rest:
            self._rest = self._rest.lstrip(b"\0")  # padding
            if self._rest:
                self._inflate = zlib.decompressobj(31)
                return True
            self._rest = self._file.read()
        return False

    def state(self) -> Any:
        """What `restore` goes on from."""
        return self.offset, self._inflate.copy(), self._rest, self._file.at

    def restore(self, state: Any) -> None:
        """Go back to a `state` of this stream."""
        self.offset, inflate, self._rest, self._file.at = state
        self._inflate = inflate.copy()


class Zstandard:
    """The decompressed blocks of a Zstandard file."""

    def __init__(self, path: str, taken: Callable[[bytes], None] | None = None) -> None:
        self._file = _File(path, taken)
        self._stream: Any = None
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._stream is None:
                raw = pa.PythonFile(self._file, mode="r")
                self._stream = pa.CompressedInputStream(raw, "zstd")
            block: bytes = self._stream.read(BLOCK)
        except (pa.ArrowException, OSError) as error:
            raise BrokenFile(f"the Zstandard stream is broken or cut ({error})") from None
        if not block:
            if not self._file.at:
                raise BrokenFile("the file is empty: a Zstandard stream has at least a header")
            raise StopIteration
        self.offset += len(block)
        return block

    def state(self) -> None:
        """None: there is no going back."""
        return None


STREAMS: dict[str, Callable[..., Gzip | Zstandard]] = {GZIP: Gzip, ZSTD: Zstandard}


class Cursor:
    """Records of one compressed file by row; quick where rows are asked for in about their order.

    Raises:
        BrokenFile: the stream is.
    """

    def __init__(self, path: str, codec: str, text: Text) -> None:
        self._path, self._codec, self._text = path, codec, text
        self._stream = STREAMS[codec](path)
        self.header = text.header(iter(STREAMS[codec](path)))
        self._marks: list[tuple[int, int, Any]] = []  # (row, its offset, state), ascending
        self._spacing = 4 << 20
        self._pending: tuple[int, Any] | None = None
        self._next_row = 0
        self._items = text.items(self._blocks(0), 0, False)
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._recent_bytes = 0

    def raw(self, row: int) -> bytes | None:
        """The bytes of a record, or None where the file ends before it."""
        if (found := self._recent.get(row)) is not None:
            return found
        self._approach(row)
        for offset, raw in self._items:
            self._mark(self._next_row, offset)
            self._remember(self._next_row, raw)
            self._next_row += 1
            if self._next_row > row:
                return raw
        self._restart(None)
        return None

    def _approach(self, row: int) -> None:
        number = bisect.bisect_right(self._marks, row, key=lambda mark: mark[0]) - 1
        mark = self._marks[number] if number >= 0 else None
        nearest = mark[0] if mark is not None else 0
        if row < self._next_row or nearest > self._next_row:
            self._restart(mark)

    def _restart(self, mark: tuple[int, int, Any] | None) -> None:
        self._pending = None
        if mark is None:
            self._stream = STREAMS[self._codec](self._path)
            self._next_row, self._items = 0, self._text.items(self._blocks(0), 0, False)
            return
        self._next_row, offset, state = mark
        assert isinstance(self._stream, Gzip)  # only it has states
        self._stream.restore(state)
        skip = offset - self._stream.offset
        self._items = self._text.items(self._blocks(skip), offset, True)

    def _blocks(self, skip: int) -> Iterator[bytes]:
        while True:
            last = self._marks[-1][1] if self._marks else 0
            if self._pending is None and self._stream.offset >= last + self._spacing:
                state = self._stream.state()
                self._pending = None if state is None else (self._stream.offset, state)
            block = next(self._stream, b"")
            if not block:
                return
            if skip < len(block):
                yield block[skip:] if skip else block
            skip = max(0, skip - len(block))

    def _mark(self, row: int, offset: int) -> None:
        """Remember the first record behind a kept state; every second one where they get many."""
        if self._pending is None or offset < self._pending[0]:
            return
        self._marks.append((row, offset, self._pending[1]))
        self._pending = None
        if len(self._marks) > _STATES:
            del self._marks[::2]
            self._spacing *= 2

    def _remember(self, row: int, raw: bytes) -> None:
        if row in self._recent:
            return
        self._recent[row] = raw
        self._recent_bytes += len(raw)
        while self._recent_bytes > _REMEMBERED and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])
