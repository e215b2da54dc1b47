"""Text in a file, compressed or not, as a container: arrays, tables, compressed lines."""

from __future__ import annotations

import atexit
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from packidx.errors import SourceError
from packidx.records.containers.base import (
    TASK_BYTES,
    BrokenFile,
    Progress,
    RawRecord,
    RecordRange,
    ShardScan,
    too_few,
    within,
)
from packidx.records.containers.blocks import Hashing, file_blocks, file_version, read_bytes
from packidx.records.containers.compressed import STREAMS, Cursor, Text


class TextContainer:
    """Records of some text format.

    Args:
        text: the format; equal ones must be equal objects, it is a key of what is remembered.
        codec: what the file is compressed with, if it is.
    """

    def __init__(self, text: Text, codec: str | None = None) -> None:
        self._text, self._codec = text, codec

    def scan(
        self, path: str, progress: Progress | None = None, task_bytes: int = TASK_BYTES
    ) -> ShardScan:
        hashing = Hashing(progress)
        with _named(path):
            self._text.header(self._blocks(path))
            cuts: list[tuple[int, int]] = []
            number = 0
            for offset, _ in self._text.items(self._blocks(path, hashing.add), 0, False):
                if not cuts or (self._codec is None and offset >= cuts[-1][0] + task_bytes):
                    cuts.append((offset, number))
                number += 1
        if self._codec is None:
            return ShardScan(
                hashing.nbytes, hashing.sha256, number, within([*cuts, (hashing.nbytes, number)])
            )
        whole = RecordRange(0, hashing.nbytes, 0, number)
        return ShardScan(hashing.nbytes, hashing.sha256, number, (whole,) if number else ())

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        plain = self._codec is None
        with _named(path):
            header = self._text.header(self._blocks(path))
            blocks = (
                file_blocks(path, record_range.start, record_range.end)
                if plain
                else self._blocks(path)
            )
            records = self._text.records(blocks, record_range.start if plain else 0, plain, header)
            row = record_range.first_row
            for offset, nbytes, record in itertools.islice(records, record_range.num_records):
                if plain:
                    yield RawRecord(row, offset, nbytes, record)
                else:
                    yield RawRecord(row, None, None, record)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        with _named(path):
            if self._codec is not None:
                raw, header = self._sought(path, row)
            elif offset is None or nbytes is None:
                raise SourceError(f"record {row} of {path} has no byte range: estimate it again")
            else:
                raw, header = read_bytes(path, offset, nbytes), self._header(path)
        return self._text.decode(raw, f" ({path}, row {row})", header)

    def _sought(self, path: str, row: int) -> tuple[bytes, Any]:
        """A compressed record's bytes and the header."""
        cursor = _cursor(path, self._codec or "", self._text, file_version(path))
        try:
            raw = cursor.raw(row)
        except (BrokenFile, SourceError):
            _cursor.cache_clear()  # it stands in the middle of what it could not read
            raise
        if raw is None:
            raise too_few(path, row)
        return raw, cursor.header

    def _header(self, path: str) -> Any:
        return _header(path, self._text, file_version(path))

    def _blocks(self, path: str, taken: Callable[[bytes], None] | None = None) -> Iterator[bytes]:
        if self._codec is not None:
            return iter(STREAMS[self._codec](path, taken))
        return file_blocks(path) if taken is None else _observed(file_blocks(path), taken)


def _observed(blocks: Iterator[bytes], taken: Callable[[bytes], None]) -> Iterator[bytes]:
    for block in blocks:
        taken(block)
        yield block


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of a broken file, with its name."""
    try:
        yield
    except BrokenFile as error:
        raise SourceError(f"{path}: {error}") from None


@functools.lru_cache(maxsize=8)
def _cursor(path: str, codec: str, text: Text, version: tuple[int, str]) -> Cursor:
    return Cursor(path, codec, text)


atexit.register(_cursor.cache_clear)  # while all it needs is still there


@functools.lru_cache(maxsize=256)
def _header(path: str, text: Text, version: tuple[int, str]) -> Any:
    return text.header(file_blocks(path))
