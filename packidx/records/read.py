"""Records of a shard as conversations: the one way in, for counting and for training.

A container gives a record, a transform may change it, the first dialect that matches reads it, and
leftovers are refused. Nothing behind this module sees a dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout, RecordRange
from packidx.records.containers.base import Locator, Record
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.containers.registry import container
from packidx.records.conversation import Conversation, record_of
from packidx.records.dialects.parse import raw_record, read
from packidx.records.dialects.raw_record import RawRecord
from packidx.records.layout import key_of
from packidx.records.leftovers import LeftoverCheck
from packidx.records.media.opener import MediaOpener
from packidx.records.media.references import LIST_KEYS

Change = Callable[[dict[str, Any], int], dict[str, Any]]
"""(a record as it stands in its file, its row) → the record that is taken for it."""


class ReadRecord(NamedTuple):
    """A record that was read."""

    locator: Locator
    key: str | None
    """Its name in its shard, or its own id."""
    data: dict[str, Any] | None
    """The record as it stands in its file, or as the transform returned it; None if it cannot be
    decoded."""
    conversation: Conversation | None = None
    """None if it is of no dialect, or something in it is wrong."""
    error: BadRecord | None = None
    """Why there is no conversation."""
    raw: RawRecord | None = None
    """Its columns and media; None if it has none that could be read."""


class RecordReader:
    """Reads the records of one source.

    Args:
        layout: how the source names things.
        change: what a record becomes; its key stays the file's.
        columns: is given each column and its use, and records with leftovers are refused
            (`leftovers`); None looks at no columns.
        has_media: True if records of the source may have media: only where none has is a
            placeholder text.
    """

    def __init__(
        self,
        layout: Layout = DEFAULT,
        change: Change | None = None,
        columns: dict[str, str] | None = None,
        *,
        has_media: bool = False,
    ) -> None:
        self.layout, self._change, self._has_media = layout, change, has_media
        self._leftovers = None if columns is None else LeftoverCheck(layout, columns)

    def read(self, record: Record) -> ReadRecord:
        """Return a record and its conversation, or what is wrong with it."""
        at, data, key = record.locator, record.data, record.key
        if isinstance(data, BadRecord):
            return ReadRecord(at, key, None, error=data)
        if key is None:
            key = key_of(data, self.layout)
        raw: RawRecord | None = None
        try:
            if self._change is not None:
                data = self._change(data, at.row)
            files = record.key, record.members
            raw = raw_record(data, self.layout, *files, has_media=self._has_media)
            try:
                conversation = read(raw)
            finally:  # leftovers of a record that is wrong are leftovers, too
                if self._leftovers is not None:
                    self._leftovers.check(data, raw)
        except BadRecord as error:
            return ReadRecord(at, key, data, error=error.with_traceback(None), raw=raw)
        except RecursionError as error:
            text = f"the record is too large: {type(error).__name__}"
            return ReadRecord(at, key, data, error=BadRecord("bad_record", text))
        return ReadRecord(at, key, data, conversation, raw=raw)


def read_records(
    path: str,
    record_range: RecordRange,
    reader: RecordReader,
    kind: str = JSONL,
) -> Iterator[ReadRecord]:
    """Yield the records of one range of a shard, as many as the scan counted.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    return map(reader.read, container(kind, reader.layout.delimiter).read(path, record_range))


def opened_record(record: ReadRecord, opener: MediaOpener) -> dict[str, Any]:
    """Return a record for an encoder, its media opened.

    Whatever its dialect is, it has OpenAI-style ``messages`` (``{"type": "image", "image": …}`` in
    place of each image, and all of them in ``images``) or ``input_ids``. Its own columns are there,
    too. Of a record of no dialect they are all there is, its lists of media opened.

    Raises:
        BadRecord: it could not be decoded, or a medium cannot be opened.
    """
    raw = record.raw
    if raw is None:
        raise record.error or BadRecord("bad_record", "the record has no columns")
    if record.conversation is None:
        return {**raw.columns, **opener.lists(raw)}
    written = record_of(opener.open(record.conversation))
    for listed, single in LIST_KEYS.values():
        media = written.pop(listed, [])
        key = single if raw.columns.get(single) else listed
        if media or key in raw.columns:
            is_one = key == single and not isinstance(raw.columns[key], list)
            written[key] = media[0] if is_one and media else media
    return {**raw.columns, **written}
