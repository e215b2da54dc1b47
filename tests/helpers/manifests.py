"""Manifests for tests: made whole, or changed and signed again, as whoever wrote them would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import file_digest
from packidx.format import index, lengths
from packidx.format.manifest import content_digest
from packidx.format.schema import FORMAT_VERSION, LENGTHS_FORMAT
from packidx.index.checksums import file_checksums
from packidx.io.files import write_json

Change = Callable[[dict[str, Any]], Any] | Mapping[str, Any]


def read(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`, unchecked."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return manifest


def sign(manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest` with the digest that fits its content."""
    return {**manifest, "digest": content_digest(manifest)}


def edit(folder: Path, change: Change) -> None:
    """Change the manifest in `folder`, in place or by members, and sign it."""
    manifest = read(folder)
    if isinstance(change, Mapping):
        manifest |= change
    else:
        change(manifest)
    write_json(folder / "manifest.json", sign(manifest))


def refresh(folder: Path, rows: bool = True) -> None:
    """Sign the manifest in `folder` with its files as they are now: damage that no checksum shows.

    Args:
        folder: of a table or a snapshot.
        rows: state their numbers of rows, too.
    """

    def change(manifest: dict[str, Any]) -> None:
        for part in manifest["files"]:
            path = folder / part["path"]
            if rows:
                part["rows"] = pq.read_metadata(path).num_rows
            part["bytes"] = path.stat().st_size
            if "crc32" in part:
                part["sha256"], part["crc32"] = file_checksums(path)
            else:
                part["sha256"] = file_digest(path)

    edit(folder, change)


def reidentify(folder: Path) -> Path:
    """Give the snapshot in `folder` the id of what its manifest says now; returns its folder."""
    manifest = read(folder)
    manifest["snapshot_id"] = index.snapshot_id(manifest)
    write_json(folder / "manifest.json", sign(manifest))
    renamed = folder.with_name(manifest["snapshot_id"])
    folder.rename(renamed)
    (folder.parent.parent / "HEAD").write_text(f"{renamed.name}\n")
    return renamed


def fingerprinted(manifest: dict[str, Any]) -> dict[str, Any]:
    """A lengths manifest with the fingerprint and the digest of its content."""
    return sign({**manifest, "fingerprint": lengths.fingerprint(manifest)})


def write_lengths_manifest(folder: Path, num_samples: int, columns: str, **members: Any) -> None:
    """A manifest of a table that lies in one part in `folder`.

    Args:
        folder: of the table.
        num_samples: its rows.
        columns: SHA-256 of its content, or what stands for it.
        members: what it says besides; of sources and shards those members that are to differ.
    """
    part = folder / "part-00000.parquet"
    size = part.stat().st_size
    file = {"path": part.name, "rows": num_samples, "bytes": size, "sha256": file_digest(part)}
    sources = members.pop("sources", [{"name": "all", "num_samples": num_samples}])
    shards = members.pop("shards", [{"rows": num_samples, "source": sources[0]["name"]}])
    manifest = {
        "format": LENGTHS_FORMAT,
        "version": FORMAT_VERSION,
        "digests": {"columns": columns},
        "num_samples": num_samples,
        "num_rejected": 0,
        "encoder": None,
        "options": {},
        "methods": {"exact": num_samples},
        "rejected": {},
        "num_media": 0,
        "sources": [{"media_root": None, "num_rejected": 0, "num_tokens": 0} | s for s in sources],
        "shards": [
            {"uri": "nowhere.jsonl", "bytes": 0, "fingerprint": columns} | s for s in shards
        ],
        "files": [file],
        **members,
    }
    write_json(folder / "manifest.json", fingerprinted(manifest))


def write_lengths(folder: Path, **columns: Any) -> str:
    """A bare table of lengths in `folder`; gives its path."""
    path = folder / "lengths.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)
