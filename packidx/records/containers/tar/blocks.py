"""A tar's bytes in order, taken or skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packidx.io.ranges import ReadAhead


class Stream:
    """Bytes of a file in order, taken or skipped.

    Args:
        blocks: the bytes.
        at: offset of the first one in the file.
    """

    def __init__(self, blocks: Iterator[bytes], at: int = 0) -> None:
        self.at = at
        self._blocks = blocks
        self._block, self._used = b"", 0

    def take(self, nbytes: int) -> bytes:
        """The next `nbytes`; fewer where the stream ends."""
        block, used = self._block, self._used
        if used + nbytes <= len(block):
            self._used += nbytes
            self.at += nbytes
            return block[used : used + nbytes]
        return b"".join(self._pieces(nbytes))

    def skip(self, nbytes: int) -> int:
        """Pass over the next `nbytes`; how many there were."""
        if self._used + nbytes <= len(self._block):
            self._used += nbytes
            self.at += nbytes
            return nbytes
        return sum(map(len, self._pieces(nbytes)))

    def rest(self) -> Iterator[bytes]:
        """All that is left, block by block."""
        return self._pieces(None)

    def _pieces(self, nbytes: int | None) -> Iterator[bytes]:
        left = nbytes
        while left is None or left > 0:
            if self._used == len(self._block):
                self._block, self._used = next(self._blocks, b""), 0
                if not self._block:
                    return
            end = len(self._block) if left is None else self._used + left
            piece = self._block[self._used : end]
            self._used += len(piece)
            self.at += len(piece)
            left = None if left is None else left - len(piece)
            yield piece


class SkippingStream(Stream):
    """Bytes of a file that are read when they are taken; what is skipped is not read.

    Args:
        read_ahead: onto the file.
        at: where it begins.
        taken: called with what is read.
    """

    def __init__(
        self, read_ahead: ReadAhead, at: int = 0, taken: Callable[[bytes], None] | None = None
    ) -> None:
        super().__init__(iter(()), at)
        self._read_ahead, self._taken = read_ahead, taken

    def take(self, nbytes: int) -> bytes:
        data = self._read_ahead.read(self.at, nbytes)
        self.at += len(data)
        if self._taken is not None:
            self._taken(data)
        return data

    def skip(self, nbytes: int) -> int:
        passed = min(nbytes, self._read_ahead.end - self.at)
        self.at += passed
        return passed

    def rest(self) -> Iterator[bytes]:
        while data := self.take(1 << 20):
            yield data
