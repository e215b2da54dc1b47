"""A snapshot's way into an object store: made on this machine, uploaded, named by HEAD last."""

from __future__ import annotations

import os
from pathlib import Path

from packidx.errors import OptionError
from packidx.io import storage
from packidx.io.copies import overlapped
from packidx.io.publish import Told, check_bucket, home, upload

_MANIFEST = "manifest.json"


def claim(url: str) -> Path:
    """The folder of this machine where snapshots of the index at `url` are made.

    Raises:
        OptionError: `url` is something else than an index, or cannot become one.
    """
    check_index(url)
    folder = Path(home(url))
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    return folder


def check_index(url: str) -> None:
    """Refuse a place where no index is or can be.

    Raises:
        OptionError: it is a file, holds other files, or has no bucket.
    """
    if storage.is_file(url):
        raise OptionError(f"{url} is a file: choose a folder for the index")
    there = storage.names(url)
    if not there:
        check_bucket(url)
    elif not {"snapshots", "HEAD"} & set(there):
        raise OptionError(f"{url} holds other files and is no index: choose a new folder")


def put_snapshot(staging: Path, url: str, told: Told | None = None) -> None:
    """Upload a snapshot's files, its manifest when all others are there.

    What another writer of this very plan uploads meanwhile is the same. A manifest that is there
    is of a damaged snapshot, which nobody is to begin with while it is made whole.

    Raises:
        OSError: the store cannot be written.
    """
    manifest = storage.join(url, _MANIFEST)
    if storage.is_file(manifest):
        storage.remove(manifest)
    names = sorted(name for name in os.listdir(staging) if name != _MANIFEST)
    upload(str(staging), url, names, told)
    there = [name for name in storage.names(url) if name not in (*names, _MANIFEST)]
    overlapped(storage.remove, [storage.join(url, name) for name in there])
    storage.upload(str(staging / _MANIFEST), manifest)
