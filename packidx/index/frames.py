"""Views of DuckDB over an index or a lengths table; who only reads packs need not have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from packidx.errors import FormatError, SourceError
from packidx.format.index import OPTIONAL, TABLE_NAMES, TABLES, PlacedWindow
from packidx.format.lengths import KnownTable, known_table
from packidx.format.parquet import scan_of
from packidx.format.schema import PACKS, fields_of
from packidx.format.step_log import LOG_VIEWS, LOSSES, OUTLIERS, logged_steps
from packidx.index.order import ORDER, Steps
from packidx.io import urls
from packidx.io.cache import local_copies

if TYPE_CHECKING:
    from packidx.index.reader import Index

SOURCES = pa.schema(
    [
        *fields_of("string name; int64 num_samples num_rejected num_dropped num_tokens"),
        *fields_of("int64 num_label_tokens; double weight; string media_root"),
        pa.field("remote_media", pa.list_(pa.string())),
        pa.field("pair", pa.string()),
    ]
)
"""`weight` is how often the mix takes a sample per epoch; null in a lengths table."""

_LOGGED = "snapshot_id, seed, global_batch, session, packs, samples"
# Of a pack, what `ORDER` does not say.
_OF_PACKS = [name for name in PACKS.names if name not in ORDER.names]
STEPS = pa.schema([*ORDER, *(PACKS.field(name) for name in _OF_PACKS)])

OF_LENGTHS = ("lengths", "rejected", "sources")
VIEWS = (*TABLE_NAMES, *OF_LENGTHS, "steps")
"""All there are; a lengths table has those `OF_LENGTHS`."""


@dataclass(frozen=True)
class Views:
    """The views of a connection, and the files and rows that they read."""

    selects: dict[str, str] = field(default_factory=dict)
    """View -> its SQL, each behind those that it reads."""
    made: dict[str, pa.Table] = field(default_factory=dict)
    """Tables that are not files, in the schema ``packidx``."""
    paths: list[str] = field(default_factory=list)
    """All files, on this machine; none is taken for a pattern."""
    absent: dict[str, str] = field(default_factory=dict)
    """Reasons for views that are not there."""

    def add_table(self, name: str, index: Index, table: str) -> None:
        """Add a table of an index, numbered as a whole, as the view `name`.

        Raises:
            FormatError: a file is missing or damaged.
        """
        placed = index.snapshot.placed
        parts = [index.files(table, each.number) for each in placed]
        paths = iter(local_copies([part for own in parts for part in own]))
        selects = [self.select_made(f"no_{name}", TABLES[table].empty_table())]
        for each, own in zip(placed, parts, strict=True):
            if files := [next(paths) for _ in own]:
                selects.append(_of_window(table, each, files))
                self.paths.extend(files)
        self.selects[name] = " UNION ALL BY NAME ".join(selects)

    def select_made(self, name: str, rows: pa.Table) -> str:
        """Add a table that is no file, and return the SQL that reads it."""
        self.made[name] = rows
        return f"SELECT * FROM packidx.{name}"

    def add_lengths(self, table: KnownTable) -> None:
        """Add a lengths table, and its rejected rows."""
        paths = local_copies(table.files)
        self.paths.extend(paths)
        self.selects["lengths"] = f"SELECT * FROM {scan_of(paths)}"
        self.selects["rejected"] = "SELECT * FROM lengths WHERE status = 'rejected'"

    def add_sources(self, manifest: Any, weights: Mapping[str, str] | None) -> None:
        """Add a row per source.

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
        self.selects["sources"] = self.select_made("sources", pa.Table.from_pylist(rows, SOURCES))


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


def views_of_index(
    index: Index, names: Collection[str], steps: Steps | None, log: Sequence[str] = ()
) -> Views:
    """Return what can be asked of an index.

    Args:
        names: the views that are asked; what is in an object store is fetched for these alone.
        steps: of the view `steps`, which is not there if they are None.
        log: files of a run's log.
    """
    views, planned = Views(), index.snapshot.lengths
    wanted = {*names, *(["packs"] if "steps" in names else []), *(["samples"] if log else [])}
    for name in TABLE_NAMES:
        if name in wanted or not urls.is_url(index.path):
            views.add_table(name, index, name)
    if "packs" in views.selects and steps is not None:
        views.made["train_order"] = steps.table()
        columns = ", ".join(f'"{name}"' for name in STEPS.names)
        joined = "packs JOIN packidx.train_order USING (pack_id)"
        views.selects["steps"] = f"SELECT {columns} FROM {joined} ORDER BY epoch, position"
    views.add_sources(index.snapshot, index.snapshot.options.weights)
    if log:  # sources and keys come from `samples`
        views.paths.extend(log)
        of_steps = logged_steps([*log])
        views.selects["logged_steps"] = f"SELECT * EXCLUDE ({_LOGGED}) FROM ({of_steps})"
        views.selects["losses"] = f"WITH logged AS ({of_steps}) {LOSSES}"
        views.selects["outliers"] = OUTLIERS
    else:
        text = "there is no view {}: name the run's log with --log DIR"
        views.absent.update((name, text.format(name)) for name in LOG_VIEWS)
    uri = index.resolve(planned.uri)
    if wanted & {"lengths", "rejected"} or not urls.is_url(uri):
        try:
            views.add_lengths(known_table(uri, planned.pattern, planned.fingerprint))
        except (SourceError, FormatError) as error:
            why = str(error)
            if isinstance(error, SourceError):
                why += ", or say where it is: --root OLD=NEW, in Python roots={old: new}"
            names = ("lengths", "rejected")
            views.absent.update((name, f"there is no view {name}: {why}") for name in names)
    return views


def create_views(connection: Any, views: Views) -> None:
    """Give a DuckDB connection the views, each of the files it names.

    Raises:
        duckdb.Error: a file cannot be read.
    """
    connection.execute("CREATE SCHEMA packidx")
    for name, rows in views.made.items():
        connection.register("packidx_rows", rows)
        connection.execute(f"CREATE TABLE packidx.{name} AS SELECT * FROM packidx_rows")
        connection.unregister("packidx_rows")
    for name, select in views.selects.items():
        if name == "rejected":
            columns = connection.execute("DESCRIBE lengths").fetchall()
            if "status" not in (column[0] for column in columns):
                why = "the lengths have no column status, which says what was rejected"
                views.absent[name] = f"there is no view {name}: {why}"
                continue
        connection.execute(f"CREATE VIEW {name} AS {select}")
