"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.errors import FormatError, OptionError
from packidx.files import (
    ColumnDigest,
    canonical_json,
    digest,
    file_digest,
    fsync_path,
    locked,
    remove_tree,
    write_atomic,
    write_json,
)
from packidx.manifest import software, unsound_file
from packidx.schema import DROPPED, FORMAT_VERSION, INDEX_FORMAT, PACKS, SAMPLES, open_writer

TABLES = {"packs": PACKS, "samples": SAMPLES, "dropped": DROPPED}
# Columns that a file may lack; they read as null.
OPTIONAL: dict[str, tuple[str, ...]] = {"packs": (), "samples": ("media",), "dropped": ()}

# Rows per row group and row groups per file, part of the format: a reader that looks one pack up
# parses a file's footer, which grows with its groups, and decodes one group.
ROW_GROUP = {"packs": 8192, "samples": 16384, "dropped": 16384}
FILE_GROUPS = 32

# Columns that no other column and nothing in the manifest determines: hashed into the id.
_ASSIGNMENT = {
    "packs": ("epoch", "num_samples"),
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
        return digest(canonical_json([one.hexdigest() for one in self._columns.values()]))


def snapshot_id(body: dict[str, Any], windows: Iterable[str]) -> str:
    """Hex digest of a plan's logical content: lengths, options, assignment; no paths or dates.

    Args:
        body: the manifest, or the part of it that is known before the id is.
        windows: digest of each window (`WindowDigest`).
    """
    head = {
        "format": INDEX_FORMAT,
        "version": FORMAT_VERSION,
        "lengths": body["lengths"]["fingerprint"],
        "options": body["options"],
    }
    return digest(canonical_json(head), canonical_json(list(windows)))[:32]


def read_head(index: Path) -> str | None:
    """The id that HEAD names, None where there is no HEAD."""
    try:
        return (index / "HEAD").read_bytes().decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


class SnapshotWriter:
    """Writes a snapshot window by window, and publishes it in one step.

    Everything is written into a hidden folder that is renamed into place; HEAD follows last. A
    crash at any instant leaves the previous snapshot intact and current. Parquet is encoded in a
    thread of its own, while the caller makes the next rows.
    """

    def __init__(self, index: Path, thread: ThreadPoolExecutor) -> None:
        self._index = index
        self._staging = index / "snapshots" / f".tmp-{os.getpid()}"
        self._staging.mkdir()
        self._thread = thread
        self._pending: Future[None] | None = None
        self._files: list[dict[str, Any]] = []
        self._open: dict[str, _Part] = {}
        self._digest = WindowDigest()
        self.windows: list[str] = []
        """Digests of the windows that are finished."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the window's tables, in the schema's types."""
        self._wait()
        self._pending = self._thread.submit(self._write, table, rows)

    def end_window(self) -> None:
        """Close the window's files."""
        self._wait()
        if not self.windows:
            for name in TABLES:  # one file of each table at least: the schema is there
                if name not in self._open:
                    self._write(name, TABLES[name].empty_table())
        for name in TABLES:
            if name in self._open:
                self._files += self._open.pop(name).close()
        self.windows.append(self._digest.hexdigest())
        self._digest = WindowDigest()

    def take_over(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Take all windows of another snapshot of this index, before any is written."""
        for part in manifest["files"]:
            source, target = folder / part["path"], self._staging / part["path"]
            try:
                os.link(source, target)  # files of a snapshot never change
            except OSError:
                shutil.copyfile(source, target)
                fsync_path(target)
            self._files.append(part)
        self.windows += [one["digest"] for one in manifest["result"]["windows"]]

    def publish(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Name the snapshot, put it into place, move HEAD to it.

        Args:
            body: of the manifest.

        Returns:
            the manifest, and whether this very plan was there already.
        """
        self._wait()
        ident = snapshot_id(body, self.windows)
        final = self._index / "snapshots" / ident
        existed = _is_whole(final, self._files)
        if not existed:
            remove_tree(final)  # what is left of a damaged one serves nobody
            order = list(TABLES)
            manifest = {
                "format": INDEX_FORMAT,
                "version": FORMAT_VERSION,
                "snapshot_id": ident,
                "parent": read_head(self._index),
                **body,
                "files": sorted(self._files, key=lambda part: _table_of(part["path"], order)),
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "software": software(),
            }
            write_json(self._staging / "manifest.json", manifest)
            os.rename(self._staging, final)
            fsync_path(self._index / "snapshots")
        if read_head(self._index) != ident:
            write_atomic(self._index / "HEAD", f"{ident}\n".encode())
        from packidx.index.reader import read_manifest

        return read_manifest(final), existed

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, table: str, rows: pa.Table) -> None:
        if table not in self._open:
            first = sum(_table_of(part["path"], [table])[0] == 0 for part in self._files)
            number = len(self.windows)
            self._open[table] = _Part(self._staging, table, first, number)
        self._open[table].write(rows)
        self._digest.update(table, rows)

    def discard(self) -> None:
        """Remove what was written and not published."""
        with contextlib.suppress(Exception):
            self._wait()
        for part in self._open.values():
            part.abandon()
        remove_tree(self._staging)


class _Part:
    """The files of one table in one window: full row groups, whatever runs the rows come in."""

    def __init__(self, folder: Path, table: str, first: int, window: int) -> None:
        self._folder, self._table = folder, table
        self._number, self._window = first, window
        self._group = ROW_GROUP[table]
        self._most = self._group * FILE_GROUPS
        self._rest: pa.Table | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._done: list[dict[str, Any]] = []

    def write(self, rows: pa.Table) -> None:
        if self._rest is not None and self._rest.num_rows:
            rows = pa.concat_tables([self._rest, rows])
        whole = rows.num_rows // self._group * self._group
        self._rest = rows.slice(whole)
        while whole:
            now = min(whole, self._most - self._rows)
            self._append(rows.slice(0, now))
            rows, whole = rows.slice(now), whole - now
            if self._rows == self._most:
                self._finish()

    def close(self) -> list[dict[str, Any]]:
        """Entries of the manifest for these files."""
        rest = self._rest if self._rest is not None else TABLES[self._table].empty_table()
        if rest.num_rows or (self._writer is None and not self._done):
            self._append(rest)
        if self._writer is not None:
            self._finish()
        return self._done

    def abandon(self) -> None:
        """Let go of a file that will not be finished."""
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer.is_open = False  # or it would try once more, and tell, when it is freed

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._table}-{self._number:05d}.parquet"

    def _append(self, rows: pa.Table) -> None:
        with _naming(self._path):
            if self._writer is None:
                self._writer = open_writer(str(self._path), rows.schema)
            self._writer.write_table(rows, row_group_size=self._group)
        self._rows += rows.num_rows

    def _finish(self) -> None:
        assert self._writer is not None
        with _naming(self._path):
            self._writer.close()
        fsync_path(self._path)
        entry = {
            "path": self._path.name,
            "rows": self._rows,
            "bytes": self._path.stat().st_size,
            "sha256": file_digest(self._path),
            "window": self._window,
        }
        self._done.append(entry)
        self._writer, self._rows, self._number = None, 0, self._number + 1


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Arrow's errors of input and output, which name no file, with the one they are about."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        words = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, words, str(path)) from None


@contextlib.contextmanager
def writing(index: Path) -> Iterator[SnapshotWriter]:
    """A writer of a new snapshot of `index`, which nobody else writes meanwhile.

    Raises:
        OptionError: `index` is something else than an index.
    """
    _claim(index)
    with locked(index), ThreadPoolExecutor(1) as thread:
        for leftover in (index / "snapshots").glob(".tmp-*"):
            remove_tree(leftover)  # we hold the lock: its writer is dead
        writer = SnapshotWriter(index, thread)
        try:
            yield writer
        finally:
            writer.discard()


def _table_of(path: str, order: list[str]) -> tuple[int, str]:
    name = path.rpartition("-")[0]
    return (order.index(name) if name in order else len(order)), path


def _is_whole(folder: Path, files: list[dict[str, Any]]) -> bool:
    """Whether a snapshot is there with a sound manifest and just these files."""
    from packidx.index.reader import read_manifest

    try:
        manifest = read_manifest(folder)
        named = sorted(part["path"] for part in files)
        return (
            manifest["snapshot_id"] == folder.name
            and sorted(part["path"] for part in manifest["files"]) == named
            and unsound_file(folder, manifest) is None
            and all(
                file_digest(folder / part["path"]) == part["sha256"] for part in manifest["files"]
            )
        )
    except (FormatError, OSError):
        return False


def _claim(index: Path) -> None:
    if index.exists() and not index.is_dir():
        raise OptionError(f"{index} is a file: choose a folder for the index")
    if index.is_dir() and any(index.iterdir()) and not (index / "snapshots").is_dir():
        raise OptionError(f"{index} holds other files and is no index: choose a new folder")
    (index / "snapshots").mkdir(parents=True, exist_ok=True)
