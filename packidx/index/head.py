"""HEAD, and which snapshots there are."""

from __future__ import annotations

from pathlib import Path

from packidx.format.index import is_snapshot_id
from packidx.io import storage, urls
from packidx.io.copies import overlapped


def snapshot_ids(folder: str | Path, beginning: str = "") -> list[str]:
    """Ids of all complete snapshots of an index, or of those that begin so, sorted.

    Raises:
        OSError: a store cannot be asked.
    """
    home = urls.join(str(folder), "snapshots")
    names = [name for name in storage.names(home) if name.startswith(beginning)]
    names = [name for name in names if is_snapshot_id(name)]
    manifests = [urls.join(home, f"{name}/manifest.json") for name in names]
    there = overlapped(storage.is_file, manifests)
    return [name for name, is_there in zip(names, there, strict=True) if is_there]


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
