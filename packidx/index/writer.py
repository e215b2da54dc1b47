"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import ColumnDigest, canonical_json, digest
from packidx.errors import FormatError, OptionError
from packidx.format.index import TABLES, IndexManifest, file_name, is_snapshot_id, snapshot_id
from packidx.format.manifest import sealed
from packidx.format.parquet import open_writer
from packidx.index.checksums import file_checksums
from packidx.io import storage, urls
from packidx.io.copies import Part, content_digest, local_copy, overlapped, unsound_file
from packidx.io.files import (
    ABANDONED,
    fsync_path,
    is_older,
    locked,
    remove_tree,
    this_boot,
    write_atomic,
    write_json,
)
from packidx.software import software

# Rows per row group and row groups per file, part of the format: a reader that looks one pack up
# parses a file's footer, which grows with its groups, and decodes one group.
ROW_GROUP = {"packs": 8192, "samples": 16384, "dropped": 16384}
FILE_GROUPS = 32

_OURS = ".tmp-"  # begins the names of folders in which snapshots are made
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


def read_head(index: str | Path) -> str | None:
    """The id that HEAD names, None where there is no HEAD.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = storage.read(urls.join(str(index), "HEAD"))
        return text.decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


class WindowFiles:
    """The files of one window while they are written, and their digest.

    Args:
        folder: where they lie.
        window: its number.
        numbers: of the first file of each table; 0 by default.
    """

    def __init__(self, folder: Path, window: int, numbers: Mapping[str, int] | None = None) -> None:
        self._folder, self._window, self._numbers = folder, window, numbers or {}
        self._open: dict[str, _Part] = {}
        self._digest = WindowDigest()

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the tables, in the schema's types."""
        if table not in self._open:
            number = self._numbers.get(table, 0)
            self._open[table] = _Part(self._folder, table, number, self._window)
        self._open[table].write(rows)
        self._digest.update(table, rows)

    def close(self, *, every: bool) -> WrittenWindow:
        """Close the files.

        Args:
            every: write one of each table at least: the schema is there.
        """
        for name in TABLES:
            if every and name not in self._open:
                self.write(name, TABLES[name].empty_table())
        files = [file for name in TABLES if name in self._open for file in self._open[name].close()]
        self._open = {}
        return WrittenWindow(files, self._digest.hexdigest())

    def abandon(self) -> None:
        """Let go of files that will not be finished."""
        for part in self._open.values():
            part.abandon()


@dataclass(frozen=True, slots=True)
class WrittenWindow:
    """A window's files, as the manifest has them, and the digest of its assignment."""

    files: list[dict[str, Any]]
    digest: str


class SnapshotWriter:
    """Writes a snapshot window by window, and publishes it in one step.

    Everything is written into a hidden folder that is renamed into place; HEAD follows last. A
    crash at any instant leaves the previous snapshot intact and current. Parquet is encoded in a
    thread of its own, while the caller makes the next rows.

    Args:
        index: folder of the index; of one in an object store, of this machine for what goes there.
        thread: the one that encodes.
        place: URL of the index, if it is in an object store.
        told: called with how many files of how many are uploaded.
    """

    def __init__(
        self,
        index: Path,
        thread: ThreadPoolExecutor,
        place: str | None = None,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self._index, self._place, self._told = index, place or str(index), told
        own = f"{_OURS}{this_boot()}-{os.getpid()}"
        self._staging = index / "snapshots" / own
        self._staging.mkdir()
        self._elsewhere = index / "snapshots" / f"{own}-windows"
        self._thread = thread
        self._pending: Future[None] | None = None
        self._files: list[dict[str, Any]] = []
        self._window: WindowFiles | None = None
        self.windows: list[str] = []
        """Digests of the windows that are finished."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to one of the window's tables, in the schema's types."""
        self._wait()
        self._pending = self._thread.submit(self._files_of_window().write, table, rows)

    def end_window(self) -> None:
        """Close the window's files."""
        self._wait()
        written = self._files_of_window().close(every=not self.windows)
        self._window = None
        self._files += written.files
        self.windows.append(written.digest)

    def folder_elsewhere(self) -> Path:
        """Folder for windows that other processes write, each try into a folder of its own."""
        self._elsewhere.mkdir(exist_ok=True)
        return self._elsewhere.absolute()

    def take_window(self, folder: Path, written: WrittenWindow) -> None:
        """Take a window that another process has written into `folder` as the next one."""
        numbers = self._next_numbers()
        for file in written.files:
            table = file["path"].rpartition("-")[0]
            path = file_name(table, numbers[table])
            os.rename(folder / file["path"], self._staging / path)
            self._files.append({**file, "path": path})
            numbers[table] += 1
        folder.rmdir()
        self.windows.append(written.digest)

    def take_over(self, folder: str | Path, manifest: dict[str, Any]) -> None:
        """Take all windows of another snapshot of this index, before any is written."""
        for part in manifest["files"]:
            path, target = urls.join(str(folder), part["path"]), self._staging / part["path"]
            with local_copy(Part(path, part["bytes"], part["sha256"])) as source:
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
        ident = snapshot_id(body)
        final = urls.join(self._place, f"snapshots/{ident}")
        existed = _is_whole(final, ident, self._files)
        if not existed:
            order, head = list(TABLES), read_head(self._place)
            manifest = {
                "snapshot_id": ident,
                "parent": head if head is not None and is_snapshot_id(head) else None,
                **body,
                "files": sorted(self._files, key=lambda part: _table_of(part["path"], order)),
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "software": software(),
            }
            write_json(self._staging / "manifest.json", sealed(manifest, IndexManifest))
            self._put(final)
        if read_head(self._place) != ident:
            head, text = urls.join(self._place, "HEAD"), f"{ident}\n".encode()
            (storage.write if urls.is_url(head) else write_atomic)(head, text)
        from packidx.format.index import read_manifest

        return read_manifest(final), existed

    def _put(self, final: str) -> None:
        """The finished snapshot into its place."""
        if urls.is_url(final):
            from packidx.io.publish import put_snapshot

            put_snapshot(self._staging, final, self._told)
            return
        remove_tree(final)  # what is left of a damaged one serves nobody
        os.rename(self._staging, final)
        fsync_path(self._index / "snapshots")

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _files_of_window(self) -> WindowFiles:
        """Those of the window that is being written."""
        if self._window is None:
            numbers = self._next_numbers()
            self._window = WindowFiles(self._staging, len(self.windows), numbers)
        return self._window

    def _next_numbers(self) -> dict[str, int]:
        """Number of each table's next file."""
        found = Counter(part["path"].rpartition("-")[0] for part in self._files)
        return {table: found[table] for table in TABLES}

    def discard(self) -> None:
        """Remove what was written and not published."""
        with contextlib.suppress(Exception):
            self._wait()
        if self._window is not None:
            self._window.abandon()
        for folder in (self._staging, self._elsewhere):
            remove_tree(folder)


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
        return self._folder / file_name(self._table, self._number)

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
        sha256, crc32 = file_checksums(self._path)
        entry = {
            "path": self._path.name,
            "rows": self._rows,
            "bytes": self._path.stat().st_size,
            "sha256": sha256,
            "crc32": crc32,
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
def writing(
    index: str | Path, told: Callable[[int, int], None] | None = None
) -> Iterator[SnapshotWriter]:
    """A writer of a new snapshot of `index`, which nobody else of this machine writes meanwhile.

    In an object store there are no locks: two machines that publish the same plan publish the same
    files; of two plans both are there, and HEAD names the one that was published last.

    Args:
        index: folder of the index, or a URL of one.
        told: called with how many files of how many are uploaded.

    Raises:
        OptionError: `index` is something else than an index.
    """
    home, place = _claim(index)
    with locked(home), ThreadPoolExecutor(1) as thread:
        _remove_leftovers(home / "snapshots")
        writer = SnapshotWriter(home, thread, place, told)
        try:
            yield writer
        finally:
            writer.discard()


def _remove_leftovers(snapshots: Path) -> None:
    """Delete what dead writers have left, while the folder's lock is ours.

    The lock says that no other writer of this machine lives. Where a file system keeps locks to
    the machine that took them, it says nothing of others: what they make is theirs until it is old.
    """
    for leftover in snapshots.glob(f"{_OURS}*"):
        if leftover.name.startswith(f"{_OURS}{this_boot()}-") or is_older(leftover, ABANDONED):
            remove_tree(leftover)


def _table_of(path: str, order: list[str]) -> tuple[int, str]:
    name = path.rpartition("-")[0]
    return (order.index(name) if name in order else len(order)), path


def _is_whole(folder: str, ident: str, files: list[dict[str, Any]]) -> bool:
    """Whether a snapshot is there with a sound manifest and just these files."""
    from packidx.format.index import read_manifest

    try:
        manifest = read_manifest(folder)
        named = sorted(part["path"] for part in files)
        return (
            manifest["snapshot_id"] == ident
            and sorted(part["path"] for part in manifest["files"]) == named
            and unsound_file(folder, manifest) is None
            and _digests(folder, manifest) == [part["sha256"] for part in manifest["files"]]
        )
    except (FormatError, FileNotFoundError):
        return False
    except OSError:
        if urls.is_url(folder):
            raise
        return False


def _digests(folder: str, manifest: dict[str, Any]) -> list[str]:
    """SHA-256 of each file of a snapshot as it is there."""
    return overlapped(
        content_digest, [urls.join(folder, part["path"]) for part in manifest["files"]]
    )


def _claim(place: str | Path) -> tuple[Path, str | None]:
    """Where snapshots are made, and the URL they go to, if they do."""
    if urls.is_url(str(place)):
        from packidx.index.stored import claim

        return claim(str(place)), str(place)
    index = Path(place)
    if index.exists() and not index.is_dir():
        raise OptionError(f"{index} is a file: choose a folder for the index")
    if index.is_dir() and any(index.iterdir()) and not (index / "snapshots").is_dir():
        raise OptionError(f"{index} holds other files and is no index: choose a new folder")
    (index / "snapshots").mkdir(parents=True, exist_ok=True)
    return index, None
