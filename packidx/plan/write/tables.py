"""One window's rows of the snapshot's tables, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import FormatError
from packidx.format.parquet import as_arrow, conform
from packidx.format.schema import PACKS, PIECE_MEDIA, SAMPLES, SAMPLES_OPTIONAL
from packidx.pack.slots import in_chunks
from packidx.plan.pack_sums import Packs
from packidx.plan.schedule.cost_model import CostModel
from packidx.plan.schedule.pack_order import blocks_of
from packidx.plan.select.items import Items
from packidx.plan.window import Variant, WindowPlan
from packidx.plan.write.result import PlanTotals

_CHUNK = 1 << 18  # rows of the samples table made at a time

Progress = Callable[[str], None]


class RowSink(Protocol):
    """Where rows go: a `SnapshotWriter`, or a window's own `WindowFiles`."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the window's tables, in the schema's types."""


def write_window(
    output: RowSink, plan: WindowPlan, block: int, totals: PlanTotals, progress: Progress
) -> None:
    """Write a window's packs, samples and dropped samples, and take them into `totals`.

    Args:
        output: where the rows go.
        plan: of the window.
        block: packs per optimizer step; 0 where no window had any yet.
        totals: of what was written before: numbers of packs and rows go on from there.
        progress: told what is being done.
    """
    options = plan.options
    model = CostModel.from_json(options.cost_model)
    totals.begin_window(plan)
    for epoch in range(options.epochs if plan.items.num_items else 0):
        variant = plan.variant(epoch, block, model)
        packs, first = variant.packs, totals.num_packs
        if not len(packs):
            continue
        progress(f"writing {len(packs):,} packs of window {plan.window.number + 1}")
        output.write("packs", _packs_table(packs, plan, epoch, totals))
        for rows in _samples_chunks(plan.items.samples, variant, first):
            output.write("samples", rows)
        totals.add(epoch, plan, variant)
    if plan.dropped.num_rows:
        output.write("dropped", plan.dropped)
    steps = options.micro_steps
    totals.end_window(plan, blocks_of(options.schedule, block or steps, steps))


def _packs_table(packs: Packs, plan: WindowPlan, epoch: int, totals: PlanTotals) -> pa.Table:
    """One row per pack (schema `PACKS`); a sum is null where one of its parts is unknown."""
    size, first = len(packs), totals.num_packs
    columns = {
        "pack_id": np.arange(first, first + size),
        "epoch": np.full(size, epoch, np.int32),
        "window": np.full(size, plan.window.number, np.int32),
        "num_samples": packs.sizes,
        "first_row": totals.num_pieces + np.cumsum(packs.sizes) - packs.sizes,
    }
    if plan.group_names:
        names = pa.array(plan.group_names)
        columns["group"] = pa.DictionaryArray.from_arrays(packs.group, names)
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


def _samples_chunks(items: Items, variant: Variant, first_pack: int) -> Iterator[pa.Table]:
    """Rows of the samples table, ordered by pack_id and position (schema `SAMPLES`)."""
    labels, sizes = items.column("label_tokens"), variant.packs.sizes
    for packs, rows in in_chunks(sizes, _CHUNK):
        yield _chunk(items, variant.ordered[rows], sizes[packs], first_pack + packs.start, labels)


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
    if "media" in present:
        media = items.rows.take("media", rows)
        columns["media"] = media_of_pieces(media, arrays["token_start"], length)
    if len(items.rows.chosen):
        columns["pair"] = items.rows.take("pair", rows)
    absent = [name for name in SAMPLES_OPTIONAL if name not in columns]
    return conform(pa.table(columns), pa.schema(f for f in SAMPLES if f.name not in absent))


def media_of_pieces(media: pa.ListArray, start: Int32s, length: Int32s) -> pa.ListArray:
    """Of each sample's `media` those that begin in a piece of it, or may, as nobody says where they
    stand (schemas `LENGTHS` and `SAMPLES`); null where the sample's are.

    Args:
        media: [n].
        start: int32 [n], the piece's first token in the sample.
        length: int32 [n], its tokens.
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
