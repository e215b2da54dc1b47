"""An index's tables as views of DuckDB, which whoever only reads packs need not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from packidx.errors import missing_package
from packidx.format.index import OPTIONAL, TABLES, PlacedWindow
from packidx.format.parquet import scan_of
from packidx.format.step_log import LOSSES, OUTLIERS, logged_steps
from packidx.index.tables import (
    NO_STATUS,
    SOURCES,
    STEPS,
    VIEWS,
    Steps,
    Views,
    views_of_index,
)

if TYPE_CHECKING:
    import duckdb

    from packidx.index.reader import Index

_MADE = "packidx"
"""The schema of the tables that are not files, and which views read."""


def create_views(connection: Any, views: Views) -> None:
    """Give a DuckDB connection the views, each of the files it names.

    No file is taken for a pattern.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    connection.execute(f"CREATE SCHEMA {_MADE}")
    for name, (table, windows) in views.tables.items():
        _create_table(connection, f"no_{name}", TABLES[table].empty_table())
        selects = [f"SELECT * FROM {_MADE}.no_{name}"]
        selects += [_of_window(table, *window) for window in windows if window[1]]
        connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(selects)}")
    if views.lengths is not None:
        scan = scan_of(views.lengths)
        connection.execute(f"CREATE VIEW lengths AS SELECT * FROM {scan}")
        _create_rejected(connection, views)
    if views.sources is not None:
        rows = pa.Table.from_pylist(views.sources, schema=SOURCES)
        _create_table(connection, "sources", rows)
        connection.execute(f"CREATE VIEW sources AS SELECT * FROM {_MADE}.sources")
    if views.log:
        _create_logged(connection, views.log)
    if "packs" in views.tables and views.steps is not None:
        _create_table(connection, "train_order", views.steps.table())
        columns = ", ".join(f'"{name}"' for name in STEPS.names)
        connection.execute(
            f"CREATE VIEW steps AS SELECT {columns} FROM packs "
            f"JOIN {_MADE}.train_order USING (pack_id) ORDER BY epoch, position"
        )
    elif "packs" in views.tables:  # whoever gets at it by another way than its name is told
        _create_table(connection, "no_steps", STEPS.empty_table())
        connection.execute(
            f"CREATE VIEW steps AS SELECT * FROM {_MADE}.no_steps UNION ALL BY NAME SELECT NULL "
            "AS step WHERE error('the steps are computed where a query names them') IS NULL"
        )


def _create_logged(connection: Any, files: list[str]) -> None:
    """The views of a run's log, which `samples` tells the sources and keys of."""
    names = "snapshot_id, seed, global_batch, session, samples"
    of_steps = logged_steps(files)
    connection.execute(f"CREATE VIEW logged_steps AS SELECT * EXCLUDE ({names}) FROM ({of_steps})")
    connection.execute(f"CREATE VIEW losses AS WITH logged AS ({of_steps}) {LOSSES}")
    connection.execute(f"CREATE VIEW outliers AS {OUTLIERS}")


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


def to_duckdb(index: Index, steps: Steps) -> duckdb.DuckDBPyConnection:
    """See `Index.duckdb`."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise missing_package("index.duckdb", error) from None
    connection = duckdb.connect()
    create_views(connection, views_of_index(index, VIEWS, steps))
    return connection
