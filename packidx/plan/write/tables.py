"""The snapshot's tables out of packed items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import FormatError
from packidx.format.parquet import as_arrow, conform
from packidx.format.schema import PACKS, PIECE_MEDIA, SAMPLES, SAMPLES_WITHOUT_MEDIA
from packidx.plan.pack_sums import Packs
from packidx.plan.select.items import Items

_CHUNK = 1 << 18  # rows of the samples table made at a time


def packs_table(
    packs: Packs, *, first_pack: int, first_row: int, epoch: int, window: int, groups: list[str]
) -> pa.Table:
    """One row per pack (schema `PACKS`); a sum is null where one of its parts is unknown."""
    size = len(packs)
    columns = {
        "pack_id": np.arange(first_pack, first_pack + size),
        "epoch": np.full(size, epoch, np.int32),
        "window": np.full(size, window, np.int32),
        "num_samples": packs.sizes,
        "first_row": first_row + np.cumsum(packs.sizes) - packs.sizes,
    }
    if groups:
        columns["group"] = pa.DictionaryArray.from_arrays(packs.group, pa.array(groups))
    for name, (values, null) in packs.sums.items():
        kind = PACKS.field(name).type
        most = int(values.max(initial=0))
        if most >> (kind.bit_width - 1):
            raise FormatError(
                f"the `{name}` of one pack add up to {most:,}, which does not fit {kind}: correct "
                "the lengths"
            )
        columns[name] = pa.array(values, kind, mask=null)
    return conform(pa.table(columns), PACKS)


def samples_chunks(
    items: Items, ordered: Int64s, sizes: Int64s, first_pack: int
) -> Iterator[pa.Table]:
    """Rows of the samples table, ordered by pack_id and position (schema `SAMPLES`).

    Args:
        items: of the window.
        ordered: int64 [n], items by pack and position (`with_length`).
        sizes: int64 [packs], items in each pack.
        first_pack: pack_id of the first.
    """
    labels = items.column("label_tokens")
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        begin = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _CHUNK)))
        stop = int(ends[last - 1])
        yield _chunk(items, ordered[begin:stop], sizes[first:last], first_pack + first, labels)
        first = last


def _chunk(
    items: Items,
    ordered: Int64s,
    sizes: Int64s,
    first_pack: int,
    labels: tuple[Int64s, Bools | None] | None,
) -> pa.Table:
    order = (ordered & 0xFFFFFFFF).astype(np.int32)
    length = (ordered >> 32).astype(np.int32)
    rows = order if items.are_all_rows else items.row[order]
    padded = length if items.padded is items.length else items.padded[order]
    starts = np.cumsum(sizes) - sizes
    zeros = np.zeros(len(order), np.int32)
    small = int(padded.max(initial=0)) * len(padded) < 1 << 31
    before: NDArray[Any] = np.cumsum(padded, dtype=np.int32 if small else np.int64)
    before -= padded
    before -= np.repeat(before[starts], sizes)

    def part(values: Int32s | None) -> Int32s:
        return zeros if values is None else values[order]

    arrays: dict[str, NDArray[Any]] = {
        "pack_id": np.repeat(np.arange(first_pack, first_pack + len(sizes)), sizes),
        "position": np.arange(len(order), dtype=np.int32)
        - np.repeat(starts.astype(np.int32), sizes),
        "copy": part(items.copy),
        "piece": part(items.piece),
        "token_start": part(items.token_start),
        "start": before.astype(np.int32, copy=False),
        "length": length,
        "padded_length": padded,
    }
    columns = {name: as_arrow(values) for name, values in arrays.items()}
    if labels is not None:
        values, null = labels
        mask = None if null is None else null[order]
        columns["label_tokens"] = pa.array(values[order].astype(np.int32), mask=mask)
    locator = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")
    present = {"sample_id", *items.rows.frame.columns}
    columns |= {name: items.rows.take(name, rows) for name in locator if name in present}
    if "media" not in present:
        return conform(pa.table(columns), SAMPLES_WITHOUT_MEDIA)
    media = items.rows.take("media", rows)
    columns["media"] = media_of_pieces(media, arrays["token_start"], length)
    return conform(pa.table(columns), SAMPLES)


def media_of_pieces(media: pa.ListArray, start: Int32s, length: Int32s) -> pa.ListArray:
    """What of each sample's media lies in a piece of it.

    Args:
        media: the samples' media (schema `LENGTHS`).
        start: int32 [n], the piece's first token in the sample.
        length: int32 [n], its tokens.

    Returns:
        per piece the media that begin in it, or may, as nobody says where they stand (schema
        `SAMPLES`); null where the sample's are.
    """
    null = media.is_null().to_numpy(zero_copy_only=False)
    sizes = media.value_lengths().fill_null(0).to_numpy()
    values = media.flatten()  # of null lists, none
    stated = values.field("at")
    is_stated = stated.is_valid().to_numpy(zero_copy_only=False)
    piece = np.repeat(np.arange(len(media)), sizes)
    at = stated.fill_null(0).to_numpy() - start[piece]
    inside = ~is_stated | (at >= 0) & (at < length[piece])
    at_of_piece = pa.array(at, pa.int32(), mask=~is_stated)
    fields = [*PIECE_MEDIA.value_type]
    columns = [at_of_piece if f.name == "at" else values.field(f.name) for f in fields]
    kept = pa.StructArray.from_arrays(columns, fields=fields).filter(pa.array(inside))
    ends = np.cumsum(np.bincount(piece[inside], minlength=len(media)), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(as_arrow(offsets), kept, PIECE_MEDIA, mask=pa.array(null))
