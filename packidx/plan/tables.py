"""The snapshot's tables out of a placement."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.plan.items import SUMMED, Items
from packidx.plan.lengths import Lengths
from packidx.plan.place import Placement
from packidx.schema import PACKS, SAMPLES, conform

Int64s = NDArray[np.int64]


def samples_table(lengths: Lengths, items: Items, placement: Placement) -> pa.Table:
    """One row per piece in a pack, ordered by pack_id and position (schema `SAMPLES`)."""
    order, first_row = placement.item, placement.first_row
    rows, length = items.row[order], items.length[order]
    sizes = placement.samples_per_pack
    end = np.cumsum(length)
    before_pack = np.concatenate([[0], end])[first_row[:-1]]
    zeros = np.zeros(len(order), np.int32)
    labels, label_null = items.column(lengths, "label_tokens", order)
    columns = {
        "pack_id": np.repeat(np.arange(placement.num_packs), sizes),
        "position": np.arange(len(order)) - np.repeat(first_row[:-1], sizes),
        "copy": zeros,
        "piece": zeros if items.piece is None else items.piece[order],
        "token_start": zeros if items.token_start is None else items.token_start[order],
        "start": end - length - np.repeat(before_pack, sizes),
        "length": length,
        "padded_length": length,
        "label_tokens": pa.array(labels, pa.int32(), mask=label_null),
    }
    locator = ("sample_id", "source", "key", "shard", "row", "offset", "nbytes")
    columns |= {name: lengths.take(name, rows) for name in locator}
    return conform(pa.table(columns), SAMPLES)


def packs_table(lengths: Lengths, items: Items, placement: Placement) -> pa.Table:
    """One row per pack (schema `PACKS`); a sum is null where one of its parts is unknown."""
    first_row = placement.first_row[:-1]
    length = items.length[placement.item]
    total = np.add.reduceat(length, first_row)
    columns = {
        "pack_id": np.arange(placement.num_packs),
        "epoch": np.zeros(placement.num_packs, np.int32),
        "window": np.zeros(placement.num_packs, np.int32),
        "num_samples": placement.samples_per_pack,
        "length": total,
        "padded_length": total,
        "attention_cost": np.add.reduceat(length * length, first_row),
        "first_row": first_row,
    }
    for name in SUMMED:
        values, null = items.column(lengths, name, placement.item)
        unknown = np.logical_or.reduceat(null, first_row)
        kind = PACKS.field(name).type
        columns[name] = pa.array(np.add.reduceat(values, first_row), kind, mask=unknown)
    return conform(pa.table(columns), PACKS)
