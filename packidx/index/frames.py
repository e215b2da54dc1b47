"""An index's tables as views of DuckDB, which whoever only reads packs need not have."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from packidx.errors import missing_package
from packidx.format.index import OPTIONAL, TABLES, PlacedWindow
from packidx.format.parquet import quoted, scan_of
from packidx.format.schema import ALL_LENGTHS
from packidx.index.tables import (
    NO_STATUS,
    SOURCES,
    STEPS,
    VIEWS,
    OpenedIndex,
    Steps,
    Views,
    views_of_index,
)

if TYPE_CHECKING:
    import duckdb

_MADE = "packidx"
"""The schema of the tables that are no file, and which views read."""


def create_views(connection: Any, views: Views) -> None:
    """Give a DuckDB connection the views, each of the files it names.

    No file is taken for a pattern. `steps` is always there: where it was not asked, its columns
    are, and an error instead of rows.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    for name, (table, windows) in views.tables.items():
        selects = [_no_row(connection, TABLES[table])]
        selects += [_of_window(table, *window) for window in windows if window[1]]
        connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(selects)}")
    if views.lengths is not None:
        scan = scan_of(views.lengths)
        connection.execute(f"CREATE VIEW lengths AS SELECT * FROM {scan}")
        _create_rejected(connection, views)
    connection.execute(f"CREATE SCHEMA {_MADE}")
    if views.sources is not None:
        rows = pa.Table.from_pylist(views.sources, schema=SOURCES)
        _create_table(connection, "sources", rows)
        connection.execute(f"CREATE VIEW sources AS SELECT * FROM {_MADE}.sources")
    if "packs" in views.tables and views.steps is not None:
        _create_table(connection, "train_order", views.steps.table())
        columns = ", ".join(f'"{name}"' for name in STEPS.names)
        connection.execute(
            f"CREATE VIEW steps AS SELECT {columns} FROM (SELECT * EXCLUDE (epoch) FROM packs) "
            f"JOIN {_MADE}.train_order USING (pack_id) ORDER BY epoch, position"
        )
    elif "packs" in views.tables:
        create_errors(connection, "steps", STEPS, "the steps are computed where a query names them")


def _of_window(table: str, placed: PlacedWindow, files: list[str]) -> str:
    """SQL of a table's rows in a window, numbered as in the whole table; a file may lack optional
    columns."""
    numbered = {
        "packs": f'pack + {placed.first_pack} AS pack_id, {placed.number}::INTEGER AS "window", '
        f"first_row + {placed.first_piece} AS first_row, * EXCLUDE (pack, first_row)",
        "samples": f"pack + {placed.first_pack} AS pack_id, * EXCLUDE (pack)",
        "dropped": "*",
    }
    scan = scan_of(files, may_differ=bool(OPTIONAL[table]) and len(files) > 1)
    return f"SELECT {numbered[table]} FROM {scan}"


def _typed_nulls(connection: Any, schema: pa.Schema) -> list[str]:
    """SQL of columns without values."""
    connection.register("packidx_rows", schema.empty_table())
    described = connection.execute("DESCRIBE packidx_rows").fetchall()
    connection.unregister("packidx_rows")
    return [f'CAST(NULL AS {kind}) AS "{column}"' for column, kind, *_ in described]


def _no_row(connection: Any, schema: pa.Schema) -> str:
    """SQL of columns without a row."""
    return f"SELECT {', '.join(_typed_nulls(connection, schema))} WHERE false"


def _create_rejected(connection: Any, views: Views) -> None:
    names = [name for name, *_ in connection.execute("DESCRIBE lengths").fetchall()]
    if "status" in names:
        where = "WHERE status = 'rejected'"
        connection.execute(f"CREATE VIEW rejected AS SELECT * FROM lengths {where}")
    else:
        views.absent["rejected"] = f"there is no view rejected: {NO_STATUS}"


def _create_table(connection: Any, name: str, rows: pa.Table) -> None:
    connection.register("packidx_rows", rows)
    connection.execute(f"CREATE TABLE {_MADE}.{name} AS SELECT * FROM packidx_rows")
    connection.unregister("packidx_rows")


def create_errors(connection: Any, name: str, schema: pa.Schema, why: str) -> None:
    """A view with the columns of `schema` and no rows: whoever asks for them is told `why`."""
    columns = ", ".join(_typed_nulls(connection, schema))
    connection.execute(f"CREATE VIEW {name} AS SELECT {columns} WHERE error({quoted(why)}) IS NULL")


def to_duckdb(index: OpenedIndex, steps: Steps) -> duckdb.DuckDBPyConnection:
    """See `Index.duckdb`."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise missing_package("index.duckdb", error) from None
    connection = duckdb.connect()
    stack = contextlib.ExitStack()
    views = views_of_index(stack, index, VIEWS, steps)
    create_views(connection, views)
    for name, why in views.absent.items():
        create_errors(connection, name, ALL_LENGTHS, why)
    weakref.finalize(connection, stack.close)  # copies of a store's files stay as long
    return connection
