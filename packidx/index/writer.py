"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from packidx.errors import FormatError
from packidx.format.index import (
    TABLES,
    IndexManifest,
    TableFile,
    file_name,
    is_snapshot_id,
    read_manifest,
    snapshot_id,
)
from packidx.format.manifest import sealed
from packidx.index.opening import read_head
from packidx.index.window_files import WrittenWindow
from packidx.io import storage, urls
from packidx.io.copies import content_of, local_copy, unsound_file
from packidx.io.files import (
    fsync_path,
    locked,
    remove_tree,
    write_atomic,
    write_json,
)
from packidx.io.output_folder import OutputFolder, local_home
from packidx.io.own_files import check_index
from packidx.software import software

_STAGING = re.compile(r"\.tmp-.*")


class SnapshotWriter:
    """Writes a snapshot window by window, and publishes it in one step.

    Everything is written into a hidden folder that is renamed into place; HEAD follows last. A
    crash at any instant leaves the previous snapshot intact and current.

    Args:
        location: folder of the index, or a URL of one.
        output: where the snapshot is made.
        uploaded: as of `writing`.
    """

    def __init__(
        self,
        location: str,
        output: OutputFolder,
        uploaded: Callable[[int, int], None] | None = None,
    ) -> None:
        self._location, self._output, self._uploaded = location, output, uploaded
        self._table = Path(output.table)
        self._files: list[TableFile] = []
        self.windows: list[str] = []
        """Digests of the windows that are finished."""

    def folder_of_windows(self) -> Path:
        """Folder for windows while they are written, each try into a folder of its own."""
        return Path(self._output.scratch("windows"))

    def take_window(self, folder: Path, written: WrittenWindow) -> None:
        """Take what was written into `folder` as the next window."""
        numbers = Counter(file.path.rpartition("-")[0] for file in self._files)
        for file in written.files:
            table = file.path.rpartition("-")[0]
            path = file_name(table, numbers[table])
            os.rename(folder / file.path, self._table / path)
            self._files.append(replace(file, path=path))
            numbers[table] += 1
        folder.rmdir()
        self.windows.append(written.digest)

    def take_over(self, folder: str | Path, snapshot: IndexManifest) -> None:
        """Take all windows of another snapshot of this index, before any is written."""
        for file in snapshot.files:
            target = self._table / file.path
            with local_copy(file.within(str(folder))) as source:
                try:
                    os.link(source, target)  # files of a snapshot never change
                except OSError:
                    shutil.copyfile(source, target)
                    fsync_path(target)
            self._files.append(file)
        self.windows += [window.digest for window in snapshot.result.windows]

    def publish(self, planned: IndexManifest) -> tuple[IndexManifest, bool]:
        """Name the snapshot, put it into place, move HEAD to it.

        `planned` is the manifest but for what the writer knows: id, parent, files, time. Returns
        the manifest, and whether this very plan was there already.
        """
        ident = snapshot_id(planned.to_json())
        final = urls.join(self._location, f"snapshots/{ident}")
        existed = _is_whole(final, ident, self._files)
        if not existed:
            order, head = list(TABLES), read_head(self._location)
            manifest = replace(
                planned,
                snapshot_id=ident,
                parent=head if head is not None and is_snapshot_id(head) else None,
                files=tuple(sorted(self._files, key=lambda file: _table_of(file.path, order))),
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                software=software(),
            )
            write_json(self._table / "manifest.json", sealed(manifest).to_json())
            self._put(final)
        if read_head(self._location) != ident:
            head, text = urls.join(self._location, "HEAD"), f"{ident}\n".encode()
            (storage.write if urls.is_url(head) else write_atomic)(head, text)
        return read_manifest(final), existed

    def _put(self, final: str) -> None:
        """The finished snapshot into its place."""
        if urls.is_url(final):
            from packidx.io.publish import put_snapshot

            put_snapshot(self._output.table, final, self._uploaded)
            return
        remove_tree(final)  # what is left of a damaged one serves nobody
        os.rename(self._table, final)
        fsync_path(os.path.dirname(final))

    def discard(self) -> None:
        """Remove what was written and not published."""
        remove_tree(self._output.path)


@contextlib.contextmanager
def writing(
    index: str | Path, uploaded: Callable[[int, int], None] | None = None
) -> Iterator[SnapshotWriter]:
    """A writer of a new snapshot of `index`, which nobody else of this machine writes meanwhile.

    In an object store there are no locks: two machines that publish the same plan publish the same
    files; of two plans both are there, and HEAD names the one that was published last.

    Args:
        index: folder of the index, or a URL of one.
        uploaded: called with how many files of how many are uploaded.

    Raises:
        OptionError: `index` is something else than an index.
    """
    location = str(index)
    check_index(location)
    home = local_home(location)
    snapshots = os.path.join(home, "snapshots")
    os.makedirs(snapshots, exist_ok=True)
    output = OutputFolder(os.path.join(snapshots, f".tmp-{os.getpid()}"))
    with locked(home, wait=True):
        for name in filter(_STAGING.fullmatch, os.listdir(snapshots)):  # of killed writers
            remove_tree(os.path.join(snapshots, name))
        os.makedirs(output.table)
        writer = SnapshotWriter(location, output, uploaded)
        try:
            yield writer
        finally:
            writer.discard()


def _table_of(path: str, order: list[str]) -> tuple[int, str]:
    name = path.rpartition("-")[0]
    return (order.index(name) if name in order else len(order)), path


def _is_whole(folder: str, ident: str, files: list[TableFile]) -> bool:
    """Return whether a snapshot is there with a sound manifest and just these files."""
    try:
        manifest = read_manifest(folder)
        parts = [file.within(folder) for file in manifest.files]
        return (
            manifest.snapshot_id == ident
            and sorted(file.path for file in manifest.files) == sorted(file.path for file in files)
            and unsound_file(parts) is None
            and all(
                content.sha256 == part.sha256
                for part, content in zip(
                    parts,
                    storage.overlapped(content_of, [part.path for part in parts]),
                    strict=True,
                )
            )
        )
    except (FormatError, FileNotFoundError):
        return False
    except OSError:
        if urls.is_url(folder):
            raise
        return False
