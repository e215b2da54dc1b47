"""An index's tables as Arrow, and what views are made of."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, NotFoundInIndex, OptionError, SourceError
from packidx.format.index import OPTIONAL, TABLE_NAMES, TABLES, IndexManifest, PlacedWindow
from packidx.format.lengths import KnownTable, known_table
from packidx.format.schema import PACKS
from packidx.format.step_log import LOG_VIEWS
from packidx.index.order import SEEDS, Dealing, Epochs, check_global_batch, packs_per_step
from packidx.index.row_groups import read_as_format
from packidx.io import urls
from packidx.io.copies import local_copies

if TYPE_CHECKING:
    from packidx.index.reader import Index

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


SOURCES = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("num_samples", pa.int64()),
        pa.field("num_rejected", pa.int64()),
        pa.field("num_dropped", pa.int64()),
        pa.field("num_tokens", pa.int64()),
        pa.field("num_label_tokens", pa.int64()),
        pa.field("weight", pa.float64()),
        pa.field("media_root", pa.string()),
        pa.field("remote_media", pa.list_(pa.string())),
        pa.field("pair", pa.string()),
    ]
)
"""`weight` is how often the mix takes a sample per epoch; null in a lengths table."""

# Of a pack, what `ORDER` does not say.
_OF_PACKS = [name for name in PACKS.names if name not in ORDER.names]
STEPS = pa.schema([*ORDER, *(PACKS.field(name) for name in _OF_PACKS)])
NO_STATUS = "the lengths have no column status, which says what was rejected"


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


def planned_lengths(index: Index) -> KnownTable:
    """The lengths table that an index was planned of.

    Raises:
        SourceError: it is not there any more.
        FormatError: another one is in its place.
    """
    planned = index.snapshot.lengths
    try:
        return known_table(index.resolve(planned.uri), planned.pattern, planned.fingerprint)
    except SourceError as error:
        where = "--root OLD=NEW, in Python roots={old: new}"
        raise SourceError(f"{error}, or say where it is: {where}") from None


def source_rows(manifest: Any, weights: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """A row per source (schema `SOURCES`) as JSON has it.

    Args:
        manifest: of an index or of a lengths table.
        weights: of the plan's options: of sources whose weight is not 1.
    """
    rows = []
    for source in manifest.sources:
        row = {name: getattr(source, name, None) for name in SOURCES.names}
        row["remote_media"] = list(source.remote_media)
        row["pair"] = source.layout and source.layout.pair
        if weights is not None:
            row["weight"] = float(Fraction(weights.get(source.name, "1")))
        rows.append(row)
    return rows


OF_LENGTHS = ("lengths", "rejected", "sources")
VIEWS = (*TABLE_NAMES, *OF_LENGTHS, "steps")
"""All there are; a lengths table has those `OF_LENGTHS`."""


WindowPaths = list[tuple[PlacedWindow, list[str]]]
"""Of each window the files of a table, on this machine."""


@dataclass(frozen=True)
class Views:
    """The files and rows that the views read."""

    lengths: list[str] | None = None
    """Files of the lengths table on this machine, where it is there."""
    tables: dict[str, tuple[str, WindowPaths]] = field(default_factory=dict)
    """View -> the table of an index that it is, and its files."""
    sources: list[dict[str, Any]] | None = None
    steps: Steps | None = None
    log: list[str] = field(default_factory=list)
    """Files of a run's log of its steps (`packidx.format.step_log`)."""
    absent: dict[str, str] = field(default_factory=dict)
    """Why a view is not there."""

    @property
    def paths(self) -> list[str]:
        """All files."""
        windows = [paths for _, windows in self.tables.values() for _, paths in windows]
        return [path for paths in (self.lengths or [], self.log, *windows) for path in paths]


def paths_of(index: Index, table: str) -> WindowPaths:
    """Return the files of a table."""
    placed = index.snapshot.placed
    parts = [index.files(table, each.number) for each in placed]
    paths = iter(local_copies([part for own in parts for part in own]))
    return [(each, [next(paths) for _ in own]) for each, own in zip(placed, parts, strict=True)]


def views_of_lengths(table: KnownTable, uri: str) -> Views:
    """Return what can be asked of a lengths table."""
    paths = local_copies(table.files)
    views = Views(lengths=paths)
    if table.manifest is None:
        why = f"{uri} is bare Parquet, which names no sources: ask its column source, if it has one"
        views.absent["sources"] = f"there is no view sources: {why}"
        return views
    return Views(lengths=paths, sources=source_rows(table.manifest, None))


def views_of_index(
    index: Index,
    names: Collection[str],
    steps: Steps | None,
    log: Sequence[str] = (),
) -> Views:
    """Return what can be asked of an index.

    Args:
        names: the views that are asked; what is in an object store is fetched for these alone.
        steps: None where they are not asked.
        log: files of a run's log.
    """
    wanted = {*names, *(["packs"] if "steps" in names else []), *(["samples"] if log else [])}
    rows = source_rows(index.snapshot, index.snapshot.options.weights)
    tables = {
        name: (name, paths_of(index, name))
        for name in TABLE_NAMES
        if name in wanted or not urls.is_url(index.path)
    }
    views = Views(tables=tables, sources=rows, steps=steps, log=[*log])
    if not log:
        for name in LOG_VIEWS:
            views.absent[name] = f"there is no view {name}: name the run's log with --log DIR"
    is_asked = wanted & {"lengths", "rejected"}
    if is_asked or not urls.is_url(index.resolve(index.snapshot.lengths.uri)):
        try:
            return replace(views, lengths=local_copies(planned_lengths(index).files))
        except (SourceError, FormatError) as error:
            for name in ("lengths", "rejected"):
                views.absent[name] = f"there is no view {name}: {error}"
    return views
