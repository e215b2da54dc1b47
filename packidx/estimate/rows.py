"""Counted records as rows of the lengths table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.errors import BadRecord
from packidx.estimate.counter import ExaminedRecord, RecordCounter
from packidx.estimate.examine import BATCH, ShardContext, count_rows, examine_batch, raw_records
from packidx.format import schema
from packidx.format.schema import METHODS
from packidx.format.terms import PAIR_SIDES
from packidx.processor.counts import KINDS, UNKNOWN, Counts, MediaColumns, Spans
from packidx.records.containers.base import RecordRange

OTHER_SIDE = "other_side"
"""Why a side of a preference pair is rejected that is all right itself."""


def shard_rows(
    shard: ShardContext,
    record_range: RecordRange,
    first_id: int,
    counter: RecordCounter,
    columns: dict[str, str],
) -> Iterator[pa.Table]:
    """The rows of one range of a shard, as tables of at most `BATCH` rows.

    Args:
        columns: is given what each column is used as; nothing where the user's own encoder reads
            the records.

    Raises:
        SourceError: the shard cannot be read.
    """
    shift = first_id - record_range.first_row
    told = None if counter.encoder is not None else columns
    raws = raw_records(shard, record_range, counter.transform, shift, told)
    while rows := examine_batch(itertools.islice(raws, BATCH), shard, shift, counter):
        yield _table(shard, rows, counter)


def _table(shard: ShardContext, rows: Sequence[ExaminedRecord], counter: RecordCounter) -> pa.Table:
    counts, good = count_rows(rows, counter)
    reject_together(rows, counts, good)
    num = len(rows)
    names = [f"{shard.name}#{item.row}" if item.key is None else item.key for item in rows]
    columns: dict[str, Any] = {
        "sample_id": [item.sample_id for item in rows],
        "source": pa.repeat(shard.source, num),
        "key": names,
        "shard": pa.repeat(shard.number, num),
        "row": [item.row for item in rows],
        "offset": [item.offset for item in rows],
        "nbytes": [item.nbytes for item in rows],
    }
    columns.update(_content_columns(rows))
    columns.update(count_columns(counts, np.array(good, np.int64), num))
    if any(item.measured is not None and item.measured.kinds is None for item in rows):
        # Only the user's encoder knows what these records hold.
        known = [item.measured is not None and item.measured.kinds is not None for item in rows]
        nothing = pa.scalar(None, columns["media"].type)
        columns["media"] = pc.if_else(pa.array(known), columns["media"], nothing)
    columns.update(_status_columns(rows, counter))
    columns["pair"] = [item.pair for item in rows]
    written = schema.ALL_LENGTHS
    arrays = [_array(columns[field.name], field.type) for field in written]
    return pa.Table.from_arrays(arrays, schema=written)


def reject_together(rows: Sequence[ExaminedRecord], counts: Counts, good: Sequence[int]) -> None:
    """Reject the other side of each rejected one: half a pair is none."""
    counted = {number: at for at, number in enumerate(good)}
    for number in range(len(rows) - 1) if any(item.pair for item in rows) else ():
        sides = rows[number], rows[number + 1]
        if (sides[0].pair, sides[1].pair) != PAIR_SIDES:
            continue
        for side, other, at in ((*sides, number), (*sides[::-1], number + 1)):
            if side.error is None and other.error is not None and other.error.reason != OTHER_SIDE:
                text = f"the {other.pair} side: {other.error.reason}: {other.error.detail}"
                side.error = BadRecord(OTHER_SIDE, text)
                if at in counted:
                    counts.errors[counted[at]] = side.error


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _content_columns(parsed: Sequence[ExaminedRecord]) -> dict[str, list[int | None]]:
    known = [None if item.error else item.conversation for item in parsed]
    media = [None if c is None else [medium.kind for medium in c.media] for c in known]
    return {
        "num_turns": [None if c is None else len(c.turns) for c in known],
        "num_images": [None if kinds is None else kinds.count("image") for kinds in media],
        "num_videos": [None if kinds is None else kinds.count("video") for kinds in media],
    }


def _status_columns(
    parsed: Sequence[ExaminedRecord], counter: RecordCounter
) -> dict[str, list[Any]]:
    errors = [item.error for item in parsed]
    return {
        "status": ["rejected" if error else "ok" for error in errors],
        "reason": [error.reason if error else None for error in errors],
        "detail": [
            _printable(item.error.detail) if item.error else _note(item, counter) for item in parsed
        ],
    }


def _note(item: ExaminedRecord, counter: RecordCounter) -> str | None:
    """What is to be said of a record that is all right."""
    talk = item.conversation
    if talk is None:
        return None
    by = counter.counted_by
    notes = [f"media counted by {by}"] if by is not None and talk.media else []
    if counter.files is not None and counter.files.template is not None:
        notes += counter.files.template_of(talk).changes(talk)
    if talk.has_literal:
        notes.append("placeholders read as text: the record has no media")
    return "; ".join(notes) or None


def _printable(text: str) -> str:
    """`text` as Parquet can hold it: valid Unicode, and short."""
    text = text if len(text) <= 500 else text[:497] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def count_columns(counts: Counts, rows: Int64s, num_rows: int) -> dict[str, pa.Array]:
    """The counted columns of a table.

    Args:
        counts: of some of the table's rows.
        rows: ``[n]`` which row each count is of, ascending.
        num_rows: rows of the table; those that are not in `rows`, or have an error, become null.
    """
    good = np.array([number not in counts.errors for number in range(len(rows))], bool)
    taken = np.full(num_rows, -1, np.int64)
    taken[rows[good]] = np.flatnonzero(good)
    missing = taken < 0

    def column(values: Int64s) -> pa.Array:
        placed = np.append(values, UNKNOWN)[taken]
        return pa.array(placed, mask=missing | (placed == UNKNOWN))

    length = np.append(counts.length, 0)[taken]
    methods = pa.DictionaryArray.from_arrays(
        pa.array(np.append(counts.method, 0)[taken], mask=missing), pa.array(METHODS)
    )
    return {
        "text_tokens": column(counts.text_tokens),
        "image_tokens": column(counts.image_tokens),
        "video_tokens": column(counts.video_tokens),
        "audio_tokens": column(counts.audio_tokens),
        "length": pa.array(np.where(missing, 0, length)),
        "label_tokens": column(counts.label_tokens),
        "vision_patches": column(counts.vision_patches),
        "vision_cost": column(counts.vision_cost),
        "media": _media(counts.media, taken, missing),
        "label_spans": _label_spans(counts.spans, taken, missing),
        "method": methods.cast(pa.string()),
    }


def _label_spans(spans: Spans, taken: Int64s, missing: NDArray[np.bool_]) -> pa.Array:
    """The lists of spans; null where they are not told."""
    sample = np.where(missing, UNKNOWN, taken)
    first = np.searchsorted(spans.sample, sample)
    last = np.searchsorted(spans.sample, sample, "right")
    offsets = np.concatenate([[0], np.cumsum(last - first)])
    order = np.repeat(first - offsets[:-1], last - first) + np.arange(offsets[-1])
    ends = [pa.array(values[order].astype(np.int32)) for values in (spans.start, spans.stop)]
    structs = pa.StructArray.from_arrays(ends, fields=list(schema.LABEL_SPANS.value_type))
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        structs,
        type=schema.LABEL_SPANS,
        mask=pa.array(first == last),
    )


def _media(media: MediaColumns, taken: Int64s, missing: NDArray[np.bool_]) -> pa.Array:
    """The lists of media; null where a row has no count."""
    sizes = np.append(np.diff(media.offsets), 0)[taken]
    sizes[missing] = 0
    firsts = np.append(media.offsets[:-1], 0)[taken]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    # Media of rejected rows are left out: their lists are null.
    order = np.repeat(firsts - offsets[:-1], sizes) + np.arange(offsets[-1])
    kinds = pa.DictionaryArray.from_arrays(pa.array(media.kind[order]), pa.array(KINDS))
    values = {
        "kind": kinds.cast(pa.string()),
        "tokens": media.tokens[order],
        "patches": media.patches[order],
        "t": media.grid[order, 0],
        "h": media.grid[order, 1],
        "w": media.grid[order, 2],
        "at": media.at[order],
    }
    fields = list(schema.MEDIA.value_type)
    arrays = []
    for item in fields:
        column = values[item.name]
        if not isinstance(column, pa.Array):
            column = pa.array(column, mask=column == UNKNOWN)
        arrays.append(column.cast(item.type))
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), structs, type=schema.MEDIA, mask=pa.array(missing)
    )
