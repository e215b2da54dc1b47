"""One window's files, and their digest."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import ColumnDigest, canonical_json, digest_parts, file_digest
from packidx.format.index import TABLES, TableFile, file_name
from packidx.format.parquet import footer_crc, open_writer
from packidx.io.files import fsync_path, name_in_errors

# Rows per row group and row groups per file, part of the format: a reader that looks one pack up
# parses a file's footer, which grows with its groups, and decodes one group.
ROW_GROUP = {"packs": 8192, "samples": 16384, "dropped": 16384}
FILE_GROUPS = 32
# Columns that no other column and nothing in the manifest determines: hashed into the id.
_ASSIGNMENT = {
    "packs": ("num_samples",),
    "samples": ("sample_id", "copy", "piece", "token_start", "length"),
    "dropped": ("sample_id", "reason"),
}


class WindowDigest:
    """Digest of one window's assignment, taken in while its rows come."""

    def __init__(self) -> None:
        self._columns = {
            (table, name): ColumnDigest(str(TABLES[table].field(name).type))
            for table, names in _ASSIGNMENT.items()
            for name in names
        }

    def update(self, table: str, rows: pa.Table) -> None:
        """Take the next rows of `table`."""
        for name in _ASSIGNMENT[table]:
            for chunk in rows[name].chunks:
                self._columns[table, name].update(chunk)

    def hexdigest(self) -> str:
        return digest_parts(
            canonical_json([column.hexdigest() for column in self._columns.values()])
        )


class WindowFiles:
    """The files of a window while they are written into `folder`, and their digest.

    Parquet is encoded in a thread of its own, while the caller makes the next rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, _TableFiles] = {}
        self._digest = WindowDigest()
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the tables, in the schema's types."""
        self._wait_for_write()
        self._pending = self._thread.submit(self._write_rows, table, rows)

    def close(self) -> tuple[tuple[TableFile, ...], str]:
        """Close the files, of tables that have rows; the digest of the assignment."""
        self._wait_for_write()
        self._thread.shutdown()
        files = [file for name in TABLES if name in self._open for file in self._open[name].close()]
        self._open = {}
        return tuple(files), self._digest.hexdigest()

    def _write_rows(self, table: str, rows: pa.Table) -> None:
        if table not in self._open:
            self._open[table] = _TableFiles(self._folder, table)
        self._open[table].write(rows)
        self._digest.update(table, rows)

    def _wait_for_write(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def abandon(self) -> None:
        """Close files that will not be finished."""
        self._thread.shutdown()
        for part in self._open.values():
            if part.writer is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    part.writer.close()
                part.writer.is_open = False  # or it would try once more when it is freed


class _TableFiles:
    """The files of one table in one window: full row groups, whatever runs the rows come in."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder, self._table, self._group = folder, table, ROW_GROUP[table]
        self._rest: pa.Table | None = None
        self.writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._done: list[TableFile] = []

    def write(self, rows: pa.Table) -> None:
        if self._rest is not None:
            rows = pa.concat_tables([self._rest, rows])
        while rows.num_rows >= self._group:
            self._append_group(rows.slice(0, self._group))
            rows = rows.slice(self._group)
        self._rest = rows

    def close(self) -> list[TableFile]:
        """Entries of the manifest for these files."""
        if self._rest is not None and self._rest.num_rows:
            self._append_group(self._rest)
        self._finish_file()
        return self._done

    def _append_group(self, group: pa.Table) -> None:
        path = self._folder / file_name(self._table, len(self._done))
        with name_in_errors(path):
            if self.writer is None:
                self.writer = open_writer(str(path), group.schema)
            self.writer.write_table(group)
        self._rows += group.num_rows
        if self._rows == self._group * FILE_GROUPS:
            self._finish_file()

    def _finish_file(self) -> None:
        if self.writer is None:
            return
        path = self._folder / file_name(self._table, len(self._done))
        with name_in_errors(path):
            self.writer.close()
        fsync_path(path)
        with pa.OSFile(str(path)) as written:
            footer = footer_crc(written)
        size, sha256 = path.stat().st_size, file_digest(path)
        file = TableFile(path=path.name, rows=self._rows, bytes=size, sha256=sha256, footer=footer)
        self._done.append(file)
        self.writer, self._rows = None, 0
