"""A snapshot that is read: lazy, light, picklable."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, NotFoundInIndex, missing_package
from packidx.format.index import OPTIONAL, STORED, TABLES, PlacedWindow, read_manifest
from packidx.format.schema import PACKS, PlannedPack, PlannedSample
from packidx.index.described import plan_line
from packidx.index.order import StepOptions, Steps
from packidx.index.row_groups import RowGroups, read_as_format
from packidx.io import urls
from packidx.io.cache import StoredFile, local_copies

if TYPE_CHECKING:
    import duckdb

# Bytes of decoded row groups that a process keeps. An epoch's order goes through blocks of
# neighbouring packs: a step's lie in a row group or two, 0.4 MB of packs, 1 to 2.5 MB of samples.
_KEPT = {"packs": 2 << 20, "samples": 8 << 20}


class Index:
    """A snapshot of a pack index, read lazily; pickles as its path.

    Of an index in an object store, a file of its tables is copied to the cache (`packidx.io.cache`)
    when something in it is first asked for.

    Attributes:
        path: folder of the index, or a URL of one.
        id: snapshot id.
        snapshot: what its manifest says.
        roots: ``{old: new}`` path prefixes, for data that has moved since it was planned.
    """

    def __init__(self, path: str, ident: str, roots: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.id = ident
        self.roots = dict(roots or {})
        self.snapshot = read_manifest(path, ident)

    def __reduce__(self) -> tuple[type[Index], tuple[str, str, dict[str, str]]]:
        return Index, (self.path, self.id, self.roots)

    def __repr__(self) -> str:
        return f"Index({plan_line(self.path, self.snapshot)})"

    def __len__(self) -> int:
        return self.num_packs

    @property
    def manifest(self) -> dict[str, Any]:
        """The snapshot's manifest (FORMAT.md) as plain JSON, made anew each time."""
        return self.snapshot.to_json()

    @property
    def num_packs(self) -> int:
        return self.snapshot.result.num_packs

    @property
    def num_samples(self) -> int:
        """Samples that are in a pack."""
        return self.snapshot.result.num_samples

    @property
    def capacity(self) -> int:
        """The most tokens a pack may hold."""
        return self.snapshot.options.capacity

    def files(self, table: str | None = None, window: int | None = None) -> list[StoredFile]:
        """Parquet files, in order, wherever they are; numbers in them count within a window.

        Args:
            table: only the files of this table.
            window: only the files of this window.
        """
        return self.snapshot.stored(self.path, table, window)

    def packs(self, columns: Sequence[str] | None = None) -> pa.Table:
        """``to_arrow("packs", columns)``."""
        return self.to_arrow("packs", columns)

    def samples(self, columns: Sequence[str] | None = None) -> pa.Table:
        """``to_arrow("samples", columns)``."""
        return self.to_arrow("samples", columns)

    def dropped(self, columns: Sequence[str] | None = None) -> pa.Table:
        """``to_arrow("dropped", columns)``."""
        return self.to_arrow("dropped", columns)

    def to_arrow(
        self, table: str, columns: Sequence[str] | None = None, window: int | None = None
    ) -> pa.Table:
        """One of the tables ``'packs'``, ``'samples'`` and ``'dropped'`` (schemas: FORMAT.md).

        Args:
            table: its name.
            columns: the ones to read, in this order; all by default.
            window: read the rows of this window alone.

        Raises:
            NotFoundInIndex: there is no such table, or it has no such column.
            FormatError: a file is missing or damaged.
        """
        if table not in TABLES:
            there = ", ".join(TABLES)
            raise NotFoundInIndex(
                f"there is no table {table!r}: there are {there}; ask index.duckdb()"
            )
        schema = TABLES[table]
        wanted = list(columns) if columns is not None else schema.names
        if unknown := [name for name in wanted if name not in schema.names]:
            raise NotFoundInIndex(
                f"{table} has no column {unknown[0]!r}: it has {', '.join(schema.names)}"
            )
        tables = [schema.empty_table().select(wanted)]
        placed = self.snapshot.placed
        for each in placed if window is None else [placed[window]]:
            parts = self.files(table, each.number)
            read = partial(_read_file, table=table, wanted=wanted, placed=each)
            for part, copy in zip(parts, local_copies(parts), strict=True):
                tables.append(read_as_format(part.path, copy, read))
        return pa.concat_tables(tables)

    def duckdb(self, **steps: Unpack[StepOptions]) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection of its own, with the views of `packidx sql`.

        ``db = index.duckdb(); db.sql("SELECT * FROM steps LIMIT 3")``. Unlike `packidx sql`, it is
        DuckDB with all that it can do; where the lengths are gone, it lacks their views.

        Args:
            steps: of the view ``steps``, the packs in the order of training: ``seed``, ``epoch``,
                ``global_batch`` and ``world_size``, each as planned where it is not given
                (`packidx.index.order.StepOptions`).

        Raises:
            MissingExtraError: duckdb is not installed, as where packs are only read.
            FormatError: a file is missing or damaged.
            OptionError: `steps` make no sense together.
        """
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise missing_package("index.duckdb", error) from None
        from packidx.index.frames import VIEWS, create_views, views_of_index

        connection = duckdb.connect()
        create_views(connection, views_of_index(self, VIEWS, Steps.of(self.snapshot, **steps)))
        return connection

    def window(self, table: str, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one window in ``'packs'``, ``'samples'`` or ``'dropped'``."""
        return self.to_arrow(table, columns, number)

    def pack(self, pack_id: int) -> PlannedPack:
        """Pack number `pack_id` with its samples.

        It costs microseconds where packs near it were asked for before, else one row group of each
        table is decoded; what is kept of them is bounded, however many packs are asked for.

        Raises:
            IndexError: there is no such pack.
            FormatError: a file is missing or damaged, or holds other rows than the pack's.
        """
        stats = self.stats(pack_id)
        first, count = stats["first_row"], stats["num_samples"]
        try:
            columns = self._sample_rows.read(first, count)
        except (IndexError, TypeError) as error:
            raise self._damage_error(pack_id, f"its samples are {error}") from None
        number = pack_id - self._window_of(pack_id).first_pack
        if columns[0] != [number] * count:
            raise self._damage_error(
                pack_id, f"{count} samples from row {first} are of other packs"
            )
        columns[0] = [pack_id] * count
        return PlannedPack(
            pack_id, stats, list(map(PlannedSample._make, zip(*columns, strict=True)))
        )

    def stats(self, pack_id: int) -> dict[str, Any]:
        """The row of pack number `pack_id` in the packs table, without its samples.

        Raises:
            IndexError: there is no such pack.
            FormatError: a file is missing or damaged, or has another pack in its place.
        """
        if not 0 <= pack_id < self.num_packs:
            raise IndexError(f"pack {pack_id}: {self.path} has packs 0 to {self.num_packs - 1}")
        placed = self._window_of(pack_id)
        try:
            row = [column[0] for column in self._pack_rows.read(pack_id, 1)]
        except IndexError as error:
            raise self._damage_error(pack_id, f"it should be in {error}") from None
        stats = dict(zip(STORED["packs"].names, row, strict=True))
        number = stats.pop("pack")
        if number != pack_id - placed.first_pack:
            where = f"of its window, not {pack_id - placed.first_pack}"
            raise self._damage_error(pack_id, f"pack {number} {where}, is in its place")
        stats["first_row"] += placed.first_piece
        own = {"pack_id": pack_id, "window": placed.number}
        return {name: own[name] if name in own else stats[name] for name in PACKS.names}

    def _window_of(self, pack_id: int) -> PlacedWindow:
        """The window that holds a pack."""
        placed = self.snapshot.placed
        return placed[bisect_right(placed, pack_id, key=attrgetter("first_pack")) - 1]

    def resolve(self, uri: str) -> str:
        """`uri` with the longest matching prefix of `roots` exchanged."""
        return urls.replace_root(uri, self.roots)

    def _damage_error(self, pack_id: int, what: str) -> FormatError:
        return FormatError(
            f"{self.path}@{self.id[:12]} is damaged at pack {pack_id} ({what}): `packidx verify`"
            " tells more; plan again"
        )

    @cached_property
    def _pack_rows(self) -> RowGroups:
        return self._row_groups("packs")

    @cached_property
    def _sample_rows(self) -> RowGroups:
        return self._row_groups("samples")

    def _row_groups(self, table: str) -> RowGroups:
        return RowGroups(
            [part.path for part in self.files(table)],
            [file for _, file in self.snapshot.files(table)],
            STORED[table].names,
            _KEPT[table],
            optional=OPTIONAL[table],
        )


_STORED_AS = {"pack_id": "pack"}


def _read_file(path: str, *, table: str, wanted: list[str], placed: PlacedWindow) -> pa.Table:
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
