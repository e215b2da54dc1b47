"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from packidx.errors import FormatError
from packidx.format.index import (
    IndexManifest,
    Window,
    is_snapshot_id,
    manifest_path,
    read_manifest,
    snapshot_id,
    windows_folder,
)
from packidx.format.manifest import sealed
from packidx.index.opening import read_head
from packidx.io import storage, urls
from packidx.io.copies import StoredFile, content_of
from packidx.io.files import (
    fsync_path,
    locked,
    refuse_open_files,
    remove_tree,
    write_atomic,
    write_json,
)
from packidx.io.output_folder import check_index, local_home
from packidx.io.storage import Uploaded
from packidx.software import software

_STAGING = re.compile(r"\.tmp-.*")


class SnapshotWriter:
    """Writes windows, and publishes a snapshot of them in one step.

    A window is written into a hidden folder, and gets its place and name when all are there. The
    manifest follows, then HEAD: a crash at any instant leaves the previous snapshot intact and
    current, and windows that no manifest names.

    Args:
        location: folder of the index, or a URL of one.
        staging: where windows are written, each into a folder of its own.
        uploaded: as of `writing`.
    """

    def __init__(self, location: str, staging: Path, uploaded: Uploaded | None = None) -> None:
        self.staging = staging
        self._location, self._uploaded = location, uploaded
        self._made: dict[str, Path] = {}

    def take_window(self, folder: Path, window: Window) -> None:
        """Take a window that was written into `folder`."""
        self._made[window.folder] = folder

    def publish(self, planned: IndexManifest) -> tuple[IndexManifest, bool]:
        """Name the snapshot, put it into place, move HEAD to it.

        `planned` is the manifest but for what the writer knows: id, parent, time. Returns the
        manifest, and whether this very plan was there already, of data at the same places.
        """
        ident = snapshot_id(planned.to_json())
        there = self._whole(ident)
        existed = there is not None and _not_in_id(there) == _not_in_id(planned)
        if not existed:
            head = read_head(self._location) if there is None else there.parent
            manifest = sealed(
                replace(
                    planned,
                    snapshot_id=ident,
                    parent=head if head is not None and is_snapshot_id(head) else None,
                    created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    software=software(),
                )
            )
            self._put(manifest)
        if read_head(self._location) != ident:
            head, text = urls.join(self._location, "HEAD"), f"{ident}\n".encode()
            (storage.write if urls.is_url(head) else write_atomic)(head, text)
        return read_manifest(self._location, ident), existed

    def _put(self, manifest: IndexManifest) -> None:
        """Windows that are new into their places, then the manifest that names them."""
        home = windows_folder(self._location)
        target = manifest_path(self._location, manifest.snapshot_id)
        if urls.is_url(target):
            files = {
                urls.join(home, f"{name}/{path.name}"): str(path)
                for name, folder in self._made.items()
                for path in sorted(folder.iterdir())
            }
            storage.upload_all(files, self._uploaded)
            write_json(self.staging / "manifest.json", manifest.to_json())
            storage.upload(str(self.staging / "manifest.json"), target)
            return
        for window in manifest.windows:
            made, place = self._made.get(window.folder), os.path.join(home, window.folder)
            parts = [file.within(place) for file in window.files]
            if made is None or _are_sound(parts):
                continue
            fsync_path(made)
            remove_tree(place)  # what is left of a damaged one serves nobody
            os.rename(made, place)
        fsync_path(home)
        write_json(target, manifest.to_json())

    def _whole(self, ident: str) -> IndexManifest | None:
        """Return the manifest of a snapshot that is there with all its files."""
        try:
            manifest = read_manifest(self._location, ident)
        except (FormatError, FileNotFoundError):
            return None
        return manifest if _are_sound(manifest.stored(self._location)) else None


def _not_in_id(manifest: IndexManifest) -> list[Any]:
    """Return what may differ between snapshots of one id: where data lie, and other columns."""
    media = [(each.media_root, *each.remote_media) for each in manifest.sources]
    shards = [(shard.uri, shard.container) for shard in manifest.shards]
    windows = [window.folder for window in manifest.windows]
    return [manifest.lengths.uri, media, shards, windows]


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
    windows = windows_folder(home)
    for folder in (windows, os.path.join(home, "snapshots")):
        os.makedirs(folder, exist_ok=True)
    with locked(home, wait=True):
        for name in filter(_STAGING.fullmatch, os.listdir(windows)):  # of killed writers
            remove_tree(os.path.join(windows, name))
        staging = Path(windows, f".tmp-{os.getpid()}")
        staging.mkdir()
        try:
            yield SnapshotWriter(location, staging, uploaded)
        finally:
            remove_tree(staging)


def _are_sound(parts: Sequence[StoredFile]) -> bool:
    """Return whether files are there with the bytes that a manifest states."""
    try:
        found = storage.overlapped(content_of, [part.path for part in parts])
    except OSError as error:
        refuse_open_files(error)
        is_missing = isinstance(error, FileNotFoundError)
        if not is_missing and any(urls.is_url(part.path) for part in parts):
            raise
        return False
    return all(part[1:] == own for part, own in zip(parts, found, strict=True))
