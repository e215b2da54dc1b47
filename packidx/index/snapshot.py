"""Publishing a snapshot: all of it or nothing, whatever happens in between."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from packidx.errors import FormatError, OptionError
from packidx.files import (
    array_digest,
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
from packidx.schema import FORMAT_VERSION, INDEX_FORMAT, open_writer

# Rows per row group and per file, part of the format: a reader decodes one group per look-up.
ROW_GROUP = {"packs": 4096, "samples": 16384, "dropped": 16384}
FILE_ROWS = 1 << 23

# Columns that no other column and nothing in the manifest determines: hashed into the id.
_ASSIGNMENT = ("pack_id", "position", "sample_id", "copy", "piece", "token_start", "length")


def snapshot_id(body: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    """Hex digest of a plan's logical content: lengths, options, assignment; no paths or dates."""
    head = {
        "format": INDEX_FORMAT,
        "version": FORMAT_VERSION,
        "lengths": body["lengths"]["fingerprint"],
        "options": body["options"],
    }
    columns = [array_digest(tables["samples"][name]) for name in _ASSIGNMENT]
    dropped = [array_digest(tables["dropped"][name]) for name in ("sample_id", "reason")]
    return digest(canonical_json(head), canonical_json(columns + dropped))[:32]


def read_head(index: Path) -> str | None:
    """The id that HEAD names, None where there is no HEAD."""
    try:
        return (index / "HEAD").read_bytes().decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


def publish(
    index: Path, body: dict[str, Any], tables: dict[str, pa.Table]
) -> tuple[dict[str, Any], bool]:
    """Write a snapshot into `index` and move HEAD to it.

    The snapshot is built in a hidden folder and renamed into place, HEAD follows last: a crash
    at any instant leaves the previous snapshot intact and current.

    Returns:
        the manifest, and whether this very plan was there already.

    Raises:
        OptionError: `index` is something else than an index.
    """
    _claim(index)
    ident = snapshot_id(body, tables)
    final = index / "snapshots" / ident
    with locked(index):
        for leftover in (index / "snapshots").glob(".tmp-*"):
            remove_tree(leftover)  # we hold the lock: its writer is dead
        existed = _is_whole(final)
        if not existed:
            remove_tree(final)  # what is left of a damaged one serves nobody
            staging = index / "snapshots" / f".tmp-{ident}"
            staging.mkdir()
            _write(staging, ident, read_head(index), body, tables)
            os.rename(staging, final)
            fsync_path(index / "snapshots")
        if read_head(index) != ident:
            write_atomic(index / "HEAD", f"{ident}\n".encode())
    from packidx.index.reader import read_manifest

    return read_manifest(final), existed


def _is_whole(folder: Path) -> bool:
    """Whether a snapshot is there with a sound manifest and every file in its size."""
    from packidx.index.reader import read_manifest

    try:
        return unsound_file(folder, read_manifest(folder)) is None
    except (FormatError, OSError):
        return False


def _claim(index: Path) -> None:
    if index.exists() and not index.is_dir():
        raise OptionError(f"{index} is a file: choose a folder for the index")
    if index.is_dir() and any(index.iterdir()) and not (index / "snapshots").is_dir():
        raise OptionError(f"{index} holds other files and is no index: choose a new folder")
    (index / "snapshots").mkdir(parents=True, exist_ok=True)


def _write(
    folder: Path, ident: str, parent: str | None, body: dict[str, Any], tables: dict[str, pa.Table]
) -> None:
    files = []
    for name, table in tables.items():
        for number in range(max(1, -(-table.num_rows // FILE_ROWS))):
            part = table.slice(number * FILE_ROWS, FILE_ROWS)
            files.append(_write_part(folder, f"{name}-{number:05d}.parquet", part, ROW_GROUP[name]))
    manifest = {
        "format": INDEX_FORMAT,
        "version": FORMAT_VERSION,
        "snapshot_id": ident,
        "parent": parent,
        **body,
        "files": files,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "software": software(),
    }
    write_json(folder / "manifest.json", manifest)


def _write_part(folder: Path, name: str, table: pa.Table, row_group: int) -> dict[str, Any]:
    path = folder / name
    with open_writer(str(path), table.schema) as writer:
        writer.write_table(table, row_group_size=row_group)
    fsync_path(path)
    return {
        "path": name,
        "rows": table.num_rows,
        "bytes": path.stat().st_size,
        "sha256": file_digest(path),
    }
