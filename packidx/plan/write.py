"""One window's rows of the snapshot's tables, and what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.errors import FormatError
from packidx.format.index import Window, folder_name
from packidx.format.parquet import as_arrow, conform_table
from packidx.format.schema import PLANNED_MEDIA, SAMPLES_OPTIONAL, STORED_PACKS, STORED_SAMPLES
from packidx.index.window_files import WindowFiles
from packidx.packing.slots import in_chunks
from packidx.plan.select.items import Items
from packidx.plan.window import Sums, WindowPlan

_CHUNK = 1 << 18  # rows of the samples table made at a time


def write_window(folder: Path | None, plan: WindowPlan, block: int) -> Window:
    """Write a window's packs, samples and dropped samples into a folder, and add them up.

    Args:
        folder: an empty one; None if nothing is to be written.
        plan: of the window.
        block: packs per optimizer step.
    """
    items, dropped = plan.items, plan.dropped
    files = None if folder is None else WindowFiles(folder)
    num_packs = num_pieces = num_tokens = without_labels = 0
    order_kept: float | None = None
    try:
        if items.num_samples:
            sums, group, ordered, order_kept = plan.ordered(block)
            sizes, (tokens, _) = sums["num_samples"][0], sums["length"]
            if files is not None:
                files.write("packs", _packs_table(sums, group, plan.group_names))
                labels = items.column("label_tokens")
                for some, rows in in_chunks(sizes, _CHUNK):
                    chunk = _samples_table(items, ordered[rows], sizes[some], some.start, labels)
                    files.write("samples", chunk)
            num_packs, num_pieces, num_tokens = len(sizes), len(ordered), int(tokens.sum())
            if "label_tokens" in sums:
                trained, unknown = sums["label_tokens"]
                is_bare = (trained == 0) if unknown is None else (trained == 0) & ~unknown
                without_labels = int(np.count_nonzero(is_bare))
        if files is not None and dropped.num_rows:
            files.write("dropped", dropped)
        written, digest = ((), "") if files is None else files.close()
    except BaseException:
        if files is not None:
            files.abandon()
        raise
    lengths = dropped["length"].fill_null(0).to_numpy()
    return Window(
        folder=folder_name([file.sha256 for file in written]),
        digest=digest,
        num_rows=plan.window.stop - plan.window.start,
        num_packs=num_packs,
        num_packs_without_labels=without_labels,
        num_samples=plan.num_samples,
        num_pieces=num_pieces,
        num_tokens=num_tokens,
        num_tokens_cut=items.num_cut,
        num_dropped=dropped.num_rows,
        num_tokens_dropped=int(lengths.clip(0).sum()),
        num_tokens_eligible=items.num_eligible,
        num_tokens_lost=items.num_lost,
        dropped=_count_values(dropped, "reason"),
        dropped_of=_count_values(dropped, "source"),
        strategies=plan.strategies,
        lower_bound=sum(bound for bound, _ in plan.bounds),
        bounds=tuple(dict.fromkeys(name for _, name in plan.bounds)),
        order_kept=order_kept,
        num_packs_divided=num_packs - plan.slots.num_packs,
        files=written,
    )


def _count_values(table: pa.Table, name: str) -> dict[str, int]:
    """Return how often each value is in a column, sorted; nulls are not counted."""
    counted = table[name].drop_null().value_counts().to_pylist()
    return dict(sorted((pair["values"], pair["counts"]) for pair in counted))


def _packs_table(sums: Sums, group: Int32s, group_names: list[str]) -> pa.Table:
    """One row per pack (`STORED_PACKS`); a sum is null where one of its parts is unknown."""
    sizes = sums["num_samples"][0]
    columns = {"pack": np.arange(len(sizes)), "first_row": np.cumsum(sizes) - sizes}
    if group_names:
        columns["group"] = pa.DictionaryArray.from_arrays(group, pa.array(group_names))
    for name, (values, null) in sums.items():
        kind = STORED_PACKS.field(name).type
        most = int(values.max(initial=0))
        if most >> (kind.bit_width - 1):
            raise FormatError(
                f"the `{name}` of one pack add up to {most:,}, which does not fit {kind}: correct "
                "the lengths"
            )
        columns[name] = pa.array(values, kind, mask=null)
    return conform_table(pa.table(columns), STORED_PACKS)


def _samples_table(
    items: Items,
    order: Int32s,
    sizes: Int64s,
    first_pack: int,
    labels: tuple[Int64s, Bools | None] | None,
) -> pa.Table:
    """Return rows of the samples table, by pack and position (`STORED_SAMPLES`)."""
    length = items.length[order]
    rows = order if items.are_all_rows else items.row[order]
    padded = length if items.padded is items.length else items.padded[order]
    starts = np.cumsum(sizes) - sizes
    zeros = np.zeros(len(order), np.int32)
    small = int(padded.max(initial=0)) * len(padded) < 1 << 31
    before: NDArray[Any] = np.cumsum(padded, dtype=np.int32 if small else np.int64)
    before -= padded
    before -= np.repeat(before[starts], sizes)

    def take_or_zeros(values: Int32s | None) -> Int32s:
        return zeros if values is None else values[order]

    arrays: dict[str, NDArray[Any]] = {
        "pack": np.repeat(np.arange(first_pack, first_pack + len(sizes)), sizes),
        "position": np.arange(len(order), dtype=np.int32)
        - np.repeat(starts.astype(np.int32), sizes),
        "copy": take_or_zeros(items.copy),
        "piece": take_or_zeros(items.piece),
        "token_start": take_or_zeros(items.token_start),
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
    columns |= {name: items.rows.arrow(name, rows) for name in locator if name in present}
    if "media" in present:
        media = items.rows.arrow("media", rows)  # a piece has none, or all that its sample has
        columns["media"] = media.cast(PLANNED_MEDIA)
    absent = [name for name in SAMPLES_OPTIONAL if name not in columns]
    return conform_table(
        pa.table(columns), pa.schema(f for f in STORED_SAMPLES if f.name not in absent)
    )
