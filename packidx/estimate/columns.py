"""Counts as Arrow columns of the lengths table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Int64s
from packidx.format import schema
from packidx.format.schema import METHODS
from packidx.processor.counts import KINDS, UNKNOWN, Counts, MediaColumns


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
        "method": methods.cast(pa.string()),
    }


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
        found = values[item.name]
        if not isinstance(found, pa.Array):
            found = pa.array(found, mask=found == UNKNOWN)
        arrays.append(found.cast(item.type))
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), structs, type=schema.MEDIA, mask=pa.array(missing)
    )
