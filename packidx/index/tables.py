"""Reading an index's tables as Arrow: those in its files, and those made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, NotFoundInIndex, SourceError
from packidx.format.index import OPTIONAL, TABLES
from packidx.format.schema import PACKS
from packidx.format.table_files import KnownTable, known_table
from packidx.index.order.steps import ORDER, Steps
from packidx.index.row_groups import readable
from packidx.io.copies import StoredFile, local_copies

if TYPE_CHECKING:
    from packidx.index.reader import Index

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

# Of a pack, what `ORDER` does not say; its epoch is that of the plan, which training repeats.
_OF_PACKS = [name for name in PACKS.names if name not in ORDER.names]
STEPS = pa.schema([*ORDER, *(PACKS.field(name) for name in _OF_PACKS)])
NO_STATUS = "the lengths have no column status, which says what was rejected"


def read_table(parts: Sequence[StoredFile], table: str, columns: Sequence[str] | None) -> pa.Table:
    """Rows of the files of one of an index's `TABLES`, in order.

    Raises:
        NotFoundInIndex: the table has no such column.
        FormatError: a file is missing or damaged.
    """
    schema = TABLES[table]
    wanted = known_columns(table, columns, schema)

    def read(path: str) -> pa.Table:
        rows = pq.ParquetFile(path).read(columns=wanted)
        for name in OPTIONAL[table]:
            if name in wanted and name not in rows.column_names:
                field = schema.field(name)
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        return rows.select(wanted)

    tables = [schema.empty_table().select(wanted)]
    with local_copies(parts) as copies:
        for part, copy in zip(parts, copies, strict=True):
            tables.append(readable(part.path, copy, read))
    return pa.concat_tables(tables)


def known_columns(table: str, columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """The columns that are asked of a table; all without.

    Raises:
        NotFoundInIndex: it has no such column.
    """
    wanted = list(columns) if columns is not None else schema.names
    unknown = [name for name in wanted if name not in schema.names]
    if unknown:
        raise NotFoundInIndex(
            f"{table} has no column {unknown[0]!r}: it has {', '.join(schema.names)}"
        )
    return wanted


def made_table(index: Index, table: str, columns: Sequence[str] | None, steps: Steps) -> pa.Table:
    """A table that is no file of the index: see `Index.to_arrow`."""
    if table == "steps":
        return _steps(index, columns, steps)
    if table == "sources":
        rows = source_rows(index.snapshot, index.snapshot.options.weights)
        made = pa.Table.from_pylist(rows, schema=SOURCES)
    elif table in ("lengths", "rejected"):
        made = _lengths(index, table)
    else:
        there = ", ".join((*TABLES, "lengths", "rejected", "sources", "steps"))
        raise NotFoundInIndex(f"there is no table {table!r}: there are {there}")
    return made.select(known_columns(table, columns, made.schema))


def _steps(index: Index, columns: Sequence[str] | None, steps: Steps) -> pa.Table:
    order = steps.table()
    wanted = known_columns("steps", columns, STEPS)
    # Packs are numbered as their rows are.
    of_packs = index.packs([name for name in wanted if name not in ORDER.names])
    if of_packs.num_columns:
        of_packs = of_packs.take(order.column("pack_id"))
    values = [(order if name in ORDER.names else of_packs).column(name) for name in wanted]
    return pa.table(values, schema=pa.schema([STEPS.field(name) for name in wanted]))


def _lengths(index: Index, table: str) -> pa.Table:
    with local_copies(planned_lengths(index).files) as paths:
        parts = [pq.read_table(path, partitioning=None) for path in paths]
    rows = pa.concat_tables(parts, promote_options="default")
    if table == "lengths":
        return rows
    if "status" not in rows.column_names:
        raise FormatError(NO_STATUS)
    from pyarrow import compute

    return rows.filter(compute.equal(rows["status"], "rejected"))


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
