"""A file or URL read block by block or as a whole, its digest, and single ranges of it.

A record may be larger than what is held of one. A file that cannot be read is a SourceError.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.io.storage import reading, unreadable

BLOCK = 1 << 20
"""Bytes read at once where records are looked for one by one."""
MAX_RECORD = 256 << 20
"""Bytes of one record; a longer one is rejected without being held in memory."""


class Hashing:
    """Digest and size of the bytes that pass through it."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self.nbytes = 0

    def add(self, block: bytes) -> None:
        self._hasher.update(block)
        self.nbytes += len(block)

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


def file_hash(path: str) -> Hashing:
    """The digest of a whole file."""
    hashing = Hashing()
    for block in file_blocks(path, size=4 << 20):
        hashing.add(block)
    return hashing


def file_blocks(
    path: str, start: int = 0, end: int | None = None, size: int = BLOCK
) -> Iterator[bytes]:
    """The bytes of the range of a file, or of a URL, block by block."""
    if urls.is_url(path):
        yield from _url_blocks(path, start, end, size)
        return
    with reading(path), open(path, "rb", buffering=0, opener=storage.open_regular) as file:
        file.seek(start)
        left = size if end is None else end - start
        while left > 0 and (block := file.read(min(size, left))):
            if end is not None:
                left -= len(block)
            yield block


def _url_blocks(url: str, start: int, end: int | None, size: int) -> Iterator[bytes]:
    with reading(url):
        end = cache.remembered_stat(url).nbytes if end is None else end
        while start < end and (block := storage.read_range(url, start, min(size, end - start))):
            start += len(block)
            yield block


def file_version(path: str) -> tuple[int, str]:
    """A file's size, and what else changes with its content: nothing remembered of it may outlive
    that."""
    with reading(path):
        status = cache.remembered_stat(path) if urls.is_url(path) else storage.stat(path)
    return status.nbytes, status.version


def read_bytes(path: str, offset: int, nbytes: int) -> bytes:
    """The bytes at a locator.

    Raises:
        SourceError: the file is missing, unreadable or ends before the record does.
    """
    try:
        data = storage.read_range(path, offset, nbytes)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if len(data) < nbytes:
        raise SourceError(
            f"{path} has only {len(data)} of the {nbytes} bytes planned at offset {offset}: "
            "the shard is not the one that was counted, so run estimate again"
        )
    return data


@contextlib.contextmanager
def local_shard(path: str) -> Iterator[str]:
    """A file of this machine with the content of `path`, kept for as long as the block."""
    if not urls.is_url(path):
        yield path
        return
    with contextlib.ExitStack() as stack:
        with reading(path):
            copy = stack.enter_context(cache.local(path))
        try:
            yield copy
        except SourceError as error:
            raise SourceError(str(error).replace(copy, path)) from error
        except BadRecord as error:
            raise BadRecord(error.reason, error.detail.replace(copy, path)) from error


class TooLarge(bytes):
    """What stands for a record of `nbytes`, too large to be held: some of its first bytes, `head`.

    Args:
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
