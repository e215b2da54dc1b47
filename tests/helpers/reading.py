"""Records as packidx reads them: from a shard, and for an encoder with their media opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout, RecordRange
from packidx.io import storage
from packidx.io.ranges import Extent
from packidx.records.containers.base import Locator, Record
from packidx.records.containers.registry import get_container
from packidx.records.conversation import Turn
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot
from packidx.records.read import ReadRecord, RecordReader, opened_record
from packidx.records.read import read_records as read_range


class Row(NamedTuple):
    """A record of a shard."""

    locator: Locator
    key: str | None
    data: Any
    """Its columns by their standard names, or what is wrong with it. A record of no dialect is read
    as far as its columns."""
    media: list[Any]
    """References of its media; files of a tar as their content."""
    turns: tuple[Turn, ...]


def _row(read: ReadRecord) -> Row:
    refs = [] if read.conversation is None else [m.ref for m in read.conversation.media]
    turns = () if read.conversation is None else read.conversation.turns
    media = [ref.read() if isinstance(ref, Extent) else ref for ref in refs]
    error = read.error
    is_wrong = error is not None and (read.raw is None or "the record has none" not in error.detail)
    columns: Mapping[str, Any] = {} if read.raw is None else read.raw.columns
    return Row(read.locator, read.key, error if is_wrong else dict(columns), media, turns)


def open_media(record: Any, root: MediaRoot, moved: Any = str) -> dict[str, Any]:
    """A record as an encoder gets it."""
    read = RecordReader().read(Record(record, Locator(0)))
    return opened_record(read, MediaOpener(root, moved))


def read_records(
    path: str, part: RecordRange, kind: str = "jsonl", layout: Layout = DEFAULT
) -> Iterator[Row]:
    """The records of a range, no column of which is left over."""
    return map(_row, read_range(path, part, RecordReader(layout), kind))


def read_row(path: str, *at: Any, kind: str = "jsonl", layout: Layout = DEFAULT) -> dict[str, Any]:
    """The columns of a record of a shard at a `Locator`.

    Raises:
        BadRecord: what is wrong with it.
    """
    row = _row(RecordReader(layout).read(get_container(kind).read_one(path, Locator(*at))))
    if isinstance(row.data, BadRecord):
        raise row.data
    columns: dict[str, Any] = row.data
    return columns


class Reads:
    """Places that are read of files while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[int, int]] = []
        read = storage.read_range

        def noted(path: str, offset: int, nbytes: int) -> bytes:
            self.places.append((offset, nbytes))
            return read(path, offset, nbytes)

        monkeypatch.setattr(storage, "read_range", noted)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.places)
