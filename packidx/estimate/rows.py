"""Lines of a shard → rows of the lengths table: parse, size media, count."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from packidx import schema
from packidx.errors import BadRecord
from packidx.processor.counter import Counted, Counter
from packidx.records import sources
from packidx.records.conversation import Conversation, Media
from packidx.records.dialects import parse
from packidx.records.media import check_place, media_size

BATCH = 512
"""Records that are tokenised together."""

_KEYS = ("id", "key", "__key__", "uid")
_MAX_TOKENS = 2**31 - 1  # the columns are int32
_COUNTED = (
    "text_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "length",
    "label_tokens",
    "vision_patches",
    "vision_cost",
    "media",
    "method",
)


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
    sizes: tuple[tuple[int, int] | None, ...] = ()
    result: Counted | BadRecord | None = None


def _table(
    shard: ShardInfo,
    lines: Sequence[tuple[int, bytes]],
    row: int,
    sample_id: int,
    counter: Counter,
) -> pa.Table:
    parsed = [_parse(line, shard) for _, line in lines]
    _count([item for item in parsed if item.result is None], counter)
    num = len(lines)
    columns: dict[str, Any] = {
        "sample_id": range(sample_id, sample_id + num),
        "source": [shard.source] * num,
        "key": [
            f"{shard.name}#{row + number}" if item.key is None else item.key
            for number, item in enumerate(parsed)
        ],
        "shard": [shard.number] * num,
        "row": range(row, row + num),
        "offset": [offset for offset, _ in lines],
        "nbytes": [len(line) for _, line in lines],
    }
    columns.update(_content_columns(parsed))
    columns.update(_count_columns(parsed))
    arrays = [pa.array(columns[field.name], field.type) for field in schema.LENGTHS]
    return pa.Table.from_arrays(arrays, schema=schema.LENGTHS)


def _parse(line: bytes, shard: ShardInfo) -> _Parsed:
    item = _Parsed()
    try:
        record = sources.decode(line)
        item.key = _key(record)
        conversation = parse(record)
        item.sizes = tuple(_size(medium, shard) for medium in conversation.media)
        item.conversation = conversation
    except BadRecord as error:
        item.result = error
    except (MemoryError, RecursionError) as error:
        item.result = BadRecord("bad_record", f"the record is too large: {type(error).__name__}")
    return item


def _size(medium: Media, shard: ShardInfo) -> tuple[int, int] | None:
    if medium.tokens is not None and not shard.sized:
        check_place(medium, shard.root, confined=shard.confined)
        return None
    return media_size(medium, shard.root, confined=shard.confined)


def _key(record: dict[str, Any]) -> str | None:
    """The record's own id as text; None where it has none that is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in _KEYS:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _count(items: Sequence[_Parsed], counter: Counter) -> None:
    """Fill in each item's result; an error that is not the record's own costs no other record."""
    if not items:
        return
    conversations = [item.conversation for item in items if item.conversation is not None]
    try:
        results = counter.count(conversations, [item.sizes for item in items])
    except Exception as error:
        if len(items) > 1:
            for item in items:
                _count([item], counter)
            return
        results = [BadRecord("uncountable", f"{type(error).__name__}: {error}")]
    for item, result in zip(items, results, strict=True):
        if isinstance(result, Counted) and result.length > _MAX_TOKENS:
            result = BadRecord("too_many_tokens", f"{result.length} tokens, over {_MAX_TOKENS}")
        item.result = result


def _content_columns(parsed: Sequence[_Parsed]) -> dict[str, list[int | None]]:
    known = [item.conversation for item in parsed]
    media = [None if c is None else [medium.kind for medium in c.media] for c in known]
    return {
        "num_turns": [None if c is None else len(c.turns) for c in known],
        "num_images": [None if kinds is None else kinds.count("image") for kinds in media],
        "num_videos": [None if kinds is None else kinds.count("video") for kinds in media],
    }


def _count_columns(parsed: Sequence[_Parsed]) -> dict[str, list[Any]]:
    results = [item.result for item in parsed]
    columns: dict[str, list[Any]] = {
        name: [getattr(result, name) if isinstance(result, Counted) else None for result in results]
        for name in _COUNTED
    }
    bad = [result if isinstance(result, BadRecord) else None for result in results]
    columns["length"] = [0 if length is None else length for length in columns["length"]]
    columns["status"] = ["rejected" if error else "ok" for error in bad]
    columns["reason"] = [error.reason if error else None for error in bad]
    columns["detail"] = [_printable(error.detail) if error else None for error in bad]
    return columns


def _printable(text: str) -> str:
    """`text` as Parquet can hold it: valid Unicode, and short."""
    text = text if len(text) <= 500 else text[:497] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def media_root(path: str, stated: str | None) -> tuple[str, bool]:
    """(root, confined) for a shard: the stated media root, else the shard's own folder."""
    return (stated, True) if stated is not None else (os.path.dirname(path) or ".", False)
