"""An index's tables as Arrow, and what views are made of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import NotFoundInIndex, OptionError
from packidx.format.index import OPTIONAL, TABLES, IndexManifest, PlacedWindow
from packidx.index.order import SEEDS, Dealing, Epochs, check_global_batch, packs_per_step
from packidx.index.row_groups import read_as_format
from packidx.io.copies import local_copies

if TYPE_CHECKING:
    pass

ORDER = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int64()),
        pa.field("micro_step", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("pack_id", pa.int64()),
    ]
)
"""Columns of `Steps.table`."""


class StepOptions(TypedDict, total=False):
    """The way that training deals packs to steps, each None or absent where it is as planned."""

    seed: int | None
    """Of `PackSampler`; None means 0."""

    epoch: int | None
    """The one to tell; None means 0."""

    global_batch: int | None
    """Packs per optimizer step."""

    world_size: int | None
    """Data-parallel ranks; None means as many as the plan's micro-steps have packs, where the steps
    are the plan's."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an epoch of an index."""

    snapshot_id: str
    epochs: Epochs
    epoch: int
    seed: int
    global_batch: int | None
    """Packs per optimizer step; None where nobody knows: `step` is null."""
    world_size: int | None
    """Data-parallel ranks; None where nobody knows: `micro_step` is null."""

    @classmethod
    def of(cls, snapshot: IndexManifest, **options: Unpack[StepOptions]) -> Steps:
        """Make one of an index's manifest.

        Raises:
            OptionError: values that make no sense together.
        """
        epochs, planned = Epochs.of(snapshot), packs_per_step(snapshot)
        epoch, seed = options.get("epoch") or 0, options.get("seed") or 0
        global_batch, world_size = options.get("global_batch"), options.get("world_size")
        if global_batch is not None:
            name = f"snapshot {snapshot.snapshot_id[:12]}"
            check_global_batch(global_batch, world_size or 1, epochs, name)
        global_batch = global_batch or planned
        if world_size is None:
            is_planned = snapshot.result.schedule != "random" and global_batch == planned
            world_size = epochs.chunk if is_planned else None
        elif world_size < 1 or (global_batch is not None and global_batch % world_size):
            raise OptionError(
                f"world_size {world_size} does not divide the {global_batch} packs of a step: give"
                " the global batch that PackSampler was given"
            )
        for name, value in {"seed": seed, "epoch": epoch}.items():
            if not 0 <= value < SEEDS:
                raise OptionError(f"{name} is {value}: it must be at least 0 and below 2^63")
        return cls(snapshot.snapshot_id, epochs, epoch, seed, global_batch, world_size)

    def table(self) -> pa.Table:
        """A row per pack (schema `ORDER`), in the order of training.

        The packs after the last whole step, which an epoch leaves out, have no `step`.
        """
        order = self.epochs.order(self.snapshot_id, self.seed, self.epoch)
        position = np.arange(order.num_packs, dtype=np.int64)
        steps = micro_steps = pa.nulls(len(position), pa.int64())
        if self.global_batch is not None:
            dealing = Dealing(order, self.global_batch)
            turns = dealing.turns(position, self.world_size or 1)
            steps, dealt = (pa.array(turn, mask=position >= dealing.end) for turn in turns)
            micro_steps = micro_steps if self.world_size is None else dealt
        columns = [np.full(len(position), self.epoch), steps, micro_steps, position]
        arrays = [*map(_cast, [*columns, order.packs(position)], ORDER)]
        return pa.table(arrays, schema=ORDER)


def _cast(values: Any, field: pa.Field) -> pa.Array:
    return (values if isinstance(values, pa.Array) else pa.array(values)).cast(field.type)


def read_table(
    snapshot: IndexManifest,
    index: str,
    table: str,
    columns: Sequence[str] | None,
    window: int | None = None,
) -> pa.Table:
    """Rows of one of an index's `TABLES`, in order: of all windows, or of one.

    Raises:
        NotFoundInIndex: there is no such table, or it has no such column.
        FormatError: a file is missing or damaged.
    """
    if table not in TABLES:
        there = ", ".join(TABLES)
        raise NotFoundInIndex(f"there is no table {table!r}: there are {there}; ask index.duckdb()")
    schema = TABLES[table]
    wanted = list(columns) if columns is not None else schema.names
    if unknown := [name for name in wanted if name not in schema.names]:
        raise NotFoundInIndex(
            f"{table} has no column {unknown[0]!r}: it has {', '.join(schema.names)}"
        )
    tables = [schema.empty_table().select(wanted)]
    placed = snapshot.placed if window is None else [snapshot.placed[window]]
    for each in placed:
        parts = snapshot.stored(index, table, each.number)
        for part, copy in zip(parts, local_copies(parts), strict=True):
            read = functools.partial(_read, table=table, wanted=wanted, placed=each)
            tables.append(read_as_format(part.path, copy, read))
    return pa.concat_tables(tables)


def _read(path: str, *, table: str, wanted: list[str], placed: PlacedWindow) -> pa.Table:
    """Columns of the file of a window, numbered as in the whole table."""
    from pyarrow import compute  # takes 20 ms to load, of a worker's time

    file = pq.ParquetFile(path, page_checksum_verification=True)
    there = set(file.schema_arrow.names)
    own = [_STORED_AS.get(name, name) for name in wanted if name != "window"]
    stored = [name for name in own if name in there or name not in OPTIONAL[table]]
    rows = file.read(columns=stored)
    if stored and rows.num_columns < len(stored):
        raise KeyError(next(name for name in stored if name not in rows.column_names))
    firsts = {"pack_id": placed.first_pack, "first_row": placed.first_piece}
    columns = []
    schema = pa.schema([TABLES[table].field(name) for name in wanted])
    for name in wanted:
        own_name = _STORED_AS.get(name, name)
        if name == "window":
            column: Any = pa.array(np.full(file.metadata.num_rows, placed.number, np.int32))
        elif own_name not in stored:
            column = pa.nulls(file.metadata.num_rows, schema.field(name).type)
        elif first := firsts.get(name):
            column = compute.add(rows.column(own_name), first)
        else:
            column = rows.column(own_name)
        columns.append(column)
    return pa.table(columns, schema)


_STORED_AS = {"pack_id": "pack"}
