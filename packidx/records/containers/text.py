"""Text in a file, compressed or not, as a container: arrays, tables, compressed lines."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from packidx.errors import SourceError
from packidx.records.containers.base import (
    TASK_BYTES,
    TASK_RECORDS,
    RawRecord,
    RecordRange,
    ShardScan,
    named,
    too_few,
    within,
)
from packidx.records.containers.blocks import (
    Hashing,
    file_blocks,
    file_version,
    read_bytes,
    too_large,
)
from packidx.records.containers.compressed import Text, range_of, text_blocks, unpacked


class TextContainer:
    """Records of some text format.

    Args:
        text: the format; equal ones must be equal objects, it is a key of what is remembered.
    """

    def __init__(self, text: Text, codec: str | None = None) -> None:
        self._text, self._codec = text, codec

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing = Hashing()
        with named(path):
            self._text.header(text_blocks(path, self._codec))
            cuts = [] if self._codec is None else [(0, 0)]
            number = 0
            blocks = text_blocks(path, self._codec, hashing.add)
            for offset, _ in self._text.items(blocks, 0, False):
                is_due = not cuts or (
                    offset >= cuts[-1][0] + task_bytes or number >= cuts[-1][1] + TASK_RECORDS
                )
                if is_due and not (cuts and self._codec):
                    cuts.append((offset, number))
                number += 1
        ranges = within([*cuts, (hashing.nbytes, number)])
        return ShardScan(hashing.nbytes, hashing.sha256, number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        plain = self._codec is None
        with named(path):
            header = self._text.header(text_blocks(path, self._codec))
            start = record_range.start if plain else 0
            blocks = text_blocks(path, self._codec)
            if plain:
                blocks = file_blocks(path, start, record_range.end)
            records = self._text.records(blocks, start, plain, header)
            row = record_range.first_row
            for offset, nbytes, record in itertools.islice(records, record_range.num_records):
                place = (offset if plain else None, nbytes if plain else None)
                yield RawRecord(row, *place, record)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        where = f" ({path}, row {row})"
        with named(path):
            if self._codec is not None:
                return self._unpacked_row(path, self._codec, row, where)
            if offset is None or nbytes is None:
                raise SourceError(f"record {row} of {path} has no byte range: estimate it again")
            return self._text.decode(read_bytes(path, offset, nbytes), where, self._header(path))

    def _unpacked_row(self, path: str, codec: str, row: int, where: str) -> dict[str, Any]:
        with unpacked(path, codec, self._text) as copy:
            byte_range = range_of(copy, row)
            if byte_range is None:
                raise too_few(path, row)
            if byte_range[1] > self._text.max_record:
                raise too_large(byte_range[1], self._text.max_record, where)
            return self._text.decode(read_bytes(copy, *byte_range), where, self._header(copy))

    def _header(self, path: str) -> Any:
        return _header(path, self._text, file_version(path))


@functools.lru_cache(maxsize=256)
def _header(path: str, text: Text, version: tuple[int, str]) -> Any:
    return text.header(file_blocks(path))
