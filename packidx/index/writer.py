"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from packidx.digests import file_digest
from packidx.errors import FormatError
from packidx.format.index import (
    IndexManifest,
    is_snapshot_id,
    manifest_path,
    read_manifest,
    snapshot_id,
    windows_folder,
)
from packidx.format.manifest import seal_manifest
from packidx.index.opening import read_head
from packidx.io import storage, urls
from packidx.io.files import fsync_path, hold_lock, json_text, remove_tree
from packidx.io.output_folder import check_index, local_home
from packidx.io.storage import Uploaded
from packidx.software import list_versions

_STAGING = re.compile(r"\.tmp-.*")


@contextlib.contextmanager
def open_staging(index: str | Path) -> Iterator[Path]:
    """A folder for the windows of a new snapshot, whose index no other process of this machine
    writes meanwhile.

    Each window is written into a folder of its own in it, until `publish_snapshot` puts all into
    place.

    Args:
        index: folder of the index, or a URL of one.

    Raises:
        OptionError: `index` is something else than an index.
    """
    check_index(str(index))
    home = local_home(str(index))
    windows = windows_folder(home)
    for folder in (windows, os.path.join(home, "snapshots")):
        os.makedirs(folder, exist_ok=True)
    with hold_lock(home, wait=True):
        for name in filter(_STAGING.fullmatch, os.listdir(windows)):  # of killed writers
            remove_tree(os.path.join(windows, name))
        staging = Path(windows, f".tmp-{os.getpid()}")
        staging.mkdir()
        try:
            yield staging
        finally:
            remove_tree(staging)


def publish_snapshot(
    index: str, planned: IndexManifest, folders: Sequence[Path], uploaded: Uploaded | None = None
) -> tuple[IndexManifest, bool]:
    """Put the files of windows into place, then the manifest that names them, then HEAD.

    A crash at any instant leaves the previous snapshot intact and current, and windows that no
    manifest names. In an object store there are no locks: two machines that publish the same plan
    publish the same files; of two plans both are there, and HEAD names the one that was published
    last.

    Args:
        index: folder of the index, or a URL of one.
        planned: the manifest but for its id, parent and time.
        folders: of each window, where its files were written (`open_staging`).
        uploaded: called with how many files of how many are uploaded.

    Returns:
        the manifest, and True if this very plan was there already, of data at the same places.
    """
    ident = snapshot_id(planned.to_json())
    there = None
    with contextlib.suppress(FormatError, FileNotFoundError):
        there = read_manifest(index, ident)
    was_whole = _put_windows(index, planned, folders, uploaded)
    existed = was_whole and there is not None and _not_in_id(there) == _not_in_id(planned)
    if not existed:
        head = read_head(index) if there is None else there.parent
        manifest = seal_manifest(
            replace(
                planned,
                snapshot_id=ident,
                parent=head if head is not None and is_snapshot_id(head) else None,
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                software=list_versions(),
            )
        )
        storage.write(manifest_path(index, ident), json_text(manifest.to_json()))
    if read_head(index) != ident:
        storage.write(urls.join_path(index, "HEAD"), f"{ident}\n".encode())
    return read_manifest(index, ident), existed


def _put_windows(
    index: str, planned: IndexManifest, folders: Sequence[Path], uploaded: Uploaded | None
) -> bool:
    """Put the files of all windows into their places, and leave those of this machine that are
    there already with the content that the manifest states. Return False if one was not; of a
    store this is not asked."""
    home = windows_folder(index)
    files = {
        urls.join_path(home, f"{window.folder}/{file.path}"): (
            os.path.join(folder, file.path),
            file,
        )
        for window, folder in zip(planned.windows, folders, strict=True)
        for file in window.files
    }
    if urls.is_url(home):
        storage.upload_all({url: path for url, (path, _) in files.items()}, uploaded)
        return True
    was_whole = True
    for target, (path, file) in files.items():
        if not os.path.exists(target) or file_digest(target) != file.sha256:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(path, target)
            was_whole = False
    for folder in {home, *map(os.path.dirname, files)}:
        fsync_path(folder)
    return was_whole


def _not_in_id(manifest: IndexManifest) -> list[Any]:
    """Return what may differ between snapshots of one id: where data lie, and other columns."""
    media = [(each.media_root, *each.remote_media) for each in manifest.sources]
    shards = [(shard.uri, shard.container) for shard in manifest.shards]
    windows = [window.folder for window in manifest.windows]
    return [manifest.lengths.uri, media, shards, windows]
