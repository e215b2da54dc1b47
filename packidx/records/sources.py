"""Shards read in the standard names: scanning them, their records in order and by place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packidx.errors import BadRecord
from packidx.records.containers import DEFAULT as JSONL
from packidx.records.containers import Range, RawRecord, ShardScan, container
from packidx.records.containers.base import TASK_BYTES, Progress
from packidx.records.containers.lines import decode, read_lines
from packidx.records.layout import DEFAULT, Layout

__all__ = ["TASK_BYTES", "Range", "RawRecord", "ShardScan", "decode", "read_lines", "read_record"]
__all__ += ["read_records", "read_row", "scan"]


def scan(
    path: str,
    progress: Progress | None = None,
    kind: str = JSONL,
    layout: Layout = DEFAULT,
) -> ShardScan:
    """Hash a shard, count its records and find where tasks may start, in one pass.

    Args:
        path: the shard.
        progress: called with the number of bytes just read.
        kind: its container's.
        layout: its source's.

    Raises:
        SourceError: the file cannot be read, or is broken so that its records cannot be counted.
    """
    return container(kind, layout.delimiter).scan(path, progress, TASK_BYTES)


def read_records(
    path: str, part: Range, kind: str = JSONL, layout: Layout = DEFAULT
) -> Iterator[RawRecord]:
    """The records of one range of a shard, in the standard names.

    A record that cannot be decoded, or that the layout does not fit, is a `BadRecord` in its place:
    as many come out as the scan counted.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    cells = _has_cells(kind)
    plain = layout == DEFAULT
    for raw in container(kind, layout.delimiter).read(path, part):
        record = raw.record
        if isinstance(record, BadRecord):
            yield raw
            continue
        try:
            applied = (DEFAULT if plain else layout).apply(record, cells=cells)
        except BadRecord as error:
            yield raw._replace(record=error.with_traceback(None))
            continue
        yield raw if applied is record else raw._replace(record=applied)


def read_row(
    path: str,
    row: int,
    offset: int | None = None,
    nbytes: int | None = None,
    *,
    kind: str = JSONL,
    layout: Layout = DEFAULT,
) -> dict[str, Any]:
    """One record of a shard, in the standard names.

    Raises:
        BadRecord: it cannot be decoded or the layout does not fit; the detail names file and place.
        SourceError: the file is missing, unreadable or has no such record.
    """
    record = container(kind, layout.delimiter).read_row(path, row, offset, nbytes)
    return layout.apply(record, cells=_has_cells(kind))


def read_record(path: str, offset: int, nbytes: int) -> dict[str, Any]:
    """The raw record at a byte range of an uncompressed file of JSON.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json`` or ``bad_record``; the detail names file and offset.
        SourceError: the file is missing, unreadable or ends before the record does.
    """
    return container(JSONL).read_row(path, 0, offset, nbytes)


def _has_cells(kind: str) -> bool:
    return kind.partition(".")[0] in ("csv", "tsv")
