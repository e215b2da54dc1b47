"""Lines of a shard → rows of the lengths table: parse, size media, count."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from packidx import schema
from packidx.errors import BadRecord, MismatchError
from packidx.estimate.columns import count_columns
from packidx.processor.counter import Counter, Counts
from packidx.records import sources
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.dialects import parse
from packidx.records.media import check_place, media_size

BATCH = 512
"""Records that are tokenised together."""

_KEYS = ("id", "key", "__key__", "uid")
_MAX_TOKENS = 2**31 - 1  # the columns are int32


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What the rows of one shard have in common."""

    number: int
    name: str
    """File name, or the shortest path suffix that tells it from the table's other shards."""
    path: str
    source: str
    root: str
    """Folder that relative media paths start from."""
    confined: bool
    """Whether `root` was stated: then nothing outside it is read."""
    sized: bool
    """Whether sizes matter where token counts are stated (that is, a processor is given)."""


def shard_rows(
    shard: ShardInfo, part: sources.Range, first_id: int, counter: Counter
) -> Iterator[pa.Table]:
    """The rows of one range of a shard, as tables of at most `BATCH` rows.

    Raises:
        SourceError: the shard cannot be read.
    """
    lines: list[tuple[int, bytes]] = []
    row = part.first_row
    offset = first_id - part.first_row
    for line in sources.read_lines(shard.path, part.start, part.end):
        lines.append(line)
        if len(lines) == BATCH:
            yield _table(shard, lines, row, row + offset, counter)
            row += len(lines)
            lines = []
    if lines:
        yield _table(shard, lines, row, row + offset, counter)


@dataclass(slots=True)
class _Parsed:
    key: str | None = None
    conversation: Conversation | None = None
    infos: tuple[MediaInfo | None, ...] = ()
    error: BadRecord | None = None


def _table(
    shard: ShardInfo,
    lines: Sequence[tuple[int, bytes]],
    row: int,
    sample_id: int,
    counter: Counter,
) -> pa.Table:
    parsed = [_parse(line, shard) for _, line in lines]
    good = [number for number, item in enumerate(parsed) if item.error is None]
    counts, good = _count(parsed, good, counter)
    num = len(lines)
    names = [
        f"{shard.name}#{row + number}" if item.key is None else item.key
        for number, item in enumerate(parsed)
    ]
    columns: dict[str, Any] = {
        "sample_id": np.arange(sample_id, sample_id + num),
        "source": pa.repeat(shard.source, num),
        "key": names,
        "shard": pa.repeat(shard.number, num),
        "row": np.arange(row, row + num),
        "offset": [offset for offset, _ in lines],
        "nbytes": [len(line) for _, line in lines],
    }
    columns.update(_content_columns(parsed))
    columns.update(count_columns(counts, np.array(good, np.int64), num))
    columns.update(_status_columns(parsed))
    arrays = [_array(columns[field.name], field.type) for field in schema.LENGTHS]
    return pa.Table.from_arrays(arrays, schema=schema.LENGTHS)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _parse(line: bytes, shard: ShardInfo) -> _Parsed:
    item = _Parsed()
    try:
        record = sources.decode(line)
        item.key = _key(record)
        item.conversation = parse(record)
        item.infos = tuple(_info(medium, shard) for medium in item.conversation.media)
    except BadRecord as error:
        item.error = error
    except (MemoryError, RecursionError) as error:
        item.error = BadRecord("bad_record", f"the record is too large: {type(error).__name__}")
    return item


def _info(medium: Media, shard: ShardInfo) -> MediaInfo | None:
    if medium.tokens is not None and not shard.sized:
        check_place(medium, shard.root, confined=shard.confined)
        return None
    size = media_size(medium, shard.root, confined=shard.confined)
    return None if size is None else MediaInfo(*size)


def _key(record: dict[str, Any]) -> str | None:
    """The record's own id as text; None where it has none that is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in _KEYS:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _count(
    parsed: Sequence[_Parsed], good: list[int], counter: Counter
) -> tuple[Counts, list[int]]:
    """The counts of what can be counted, and which of `parsed` they are; the rest gets its error.

    An error that is not a record's own costs no other record.
    """
    try:
        counts = _run(parsed, good, counter)
    except MismatchError:
        raise
    except Exception:
        for number in good:
            try:
                _run(parsed, [number], counter)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                parsed[number].error = BadRecord("uncountable", text)
        good = [number for number in good if parsed[number].error is None]
        counts = _run(parsed, good, counter)
    errors = dict(counts.errors)
    for at in np.flatnonzero(counts.length > _MAX_TOKENS).tolist():
        text = f"{counts.length[at]} tokens, over {_MAX_TOKENS}"
        errors.setdefault(at, BadRecord("too_many_tokens", text))
    for at, bad in errors.items():
        parsed[good[at]].error = bad
    return counts, good


def _run(parsed: Sequence[_Parsed], chosen: Sequence[int], counter: Counter) -> Counts:
    items = [parsed[number] for number in chosen]
    conversations = [item.conversation for item in items if item.conversation is not None]
    return counter.count(conversations, [item.infos for item in items])


def _content_columns(parsed: Sequence[_Parsed]) -> dict[str, list[int | None]]:
    known = [None if item.error else item.conversation for item in parsed]
    media = [None if c is None else [medium.kind for medium in c.media] for c in known]
    return {
        "num_turns": [None if c is None else len(c.turns) for c in known],
        "num_images": [None if kinds is None else kinds.count("image") for kinds in media],
        "num_videos": [None if kinds is None else kinds.count("video") for kinds in media],
    }


def _status_columns(parsed: Sequence[_Parsed]) -> dict[str, list[Any]]:
    errors = [item.error for item in parsed]
    return {
        "status": ["rejected" if error else "ok" for error in errors],
        "reason": [error.reason if error else None for error in errors],
        "detail": [_printable(error.detail) if error else None for error in errors],
    }


def _printable(text: str) -> str:
    """`text` as Parquet can hold it: valid Unicode, and short."""
    text = text if len(text) <= 500 else text[:497] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def media_root(path: str, stated: str | None) -> tuple[str, bool]:
    """(root, confined) for a shard: the stated media root, else the shard's own folder."""
    return (stated, True) if stated is not None else (os.path.dirname(path) or ".", False)
