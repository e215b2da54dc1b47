"""Records that may be larger than what is held of one."""

from __future__ import annotations

from packidx.errors import BadRecord

MAX_RECORD = 256 << 20
"""Bytes of one record; a longer one is rejected without being held in memory."""


class TooLarge(bytes):
    """What stands for a record that is too large to be held: some of its first bytes.

    Args:
        head: these.
        nbytes: its size.
        limit: the size that it is over.
    """

    nbytes: int
    limit: int

    def __new__(cls, head: bytes, nbytes: int, limit: int) -> TooLarge:
        self = super().__new__(cls, head)
        self.nbytes, self.limit = nbytes, limit
        return self


def size_of(raw: bytes) -> int:
    """Bytes of a record in its file."""
    return raw.nbytes if isinstance(raw, TooLarge) else len(raw)


def too_large(nbytes: int, limit: int, where: str = "") -> BadRecord:
    """The error of a record over the limit."""
    bound = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    text = f"the record has {nbytes:,} bytes, over {bound}: write its media to files{where}"
    return BadRecord("record_too_large", text)


class Gathered:
    """A record's bytes, block by block, held up to a limit.

    Args:
        limit: in bytes.
        blank: bytes that are no content.
    """

    def __init__(self, limit: int, blank: bytes) -> None:
        self.nbytes = 0
        self._limit, self._blank = limit, blank
        self._pieces: list[bytes] = []
        self._head: bytes | None = None  # of a record over the limit

    def add(self, piece: bytes) -> None:
        """The next bytes of it."""
        self.nbytes += len(piece)
        if self.nbytes <= self._limit:
            self._pieces.append(piece)
            return
        for held in (*self._pieces, piece):
            self._head = self._head or held.strip(self._blank)[:64]
        self._pieces.clear()

    def take(self) -> bytes:
        """All of it, or a `TooLarge`, which is empty where it is blank; the next one begins."""
        record = b"".join(self._pieces)
        if self._head is not None:
            record = TooLarge(self._head, self.nbytes, self._limit)
        self._pieces, self._head, self.nbytes = [], None, 0
        return record
