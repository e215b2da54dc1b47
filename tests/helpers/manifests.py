"""Manifests for tests: made whole, or changed and signed again, as whoever wrote them would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packidx.digests import file_digest
from packidx.format import lengths
from packidx.format.index import manifest_path, snapshot_id
from packidx.format.manifest import content_digest
from packidx.format.parquet import footer_crc
from packidx.format.schema import FORMAT_VERSION, LENGTHS_FORMAT
from packidx.index import Index
from packidx.io.files import write_json

Change = Callable[[dict[str, Any]], Any] | Mapping[str, Any]


def path_of(place: Path | Index) -> Path:
    """Where the manifest of a lengths table in a folder, or of a snapshot, is."""
    if isinstance(place, Index):
        return Path(manifest_path(place.path, place.id))
    return place / "manifest.json"


def file_of(index: Index, table: str) -> Path:
    """The first file of one of a snapshot's tables."""
    return Path(index.files(table)[0].path)


def read(place: Path | Index) -> dict[str, Any]:
    """The manifest of a table or a snapshot, unchecked."""
    manifest: dict[str, Any] = json.loads(path_of(place).read_bytes())
    return manifest


def sign(manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest` with the digest that fits its content."""
    return {**manifest, "digest": content_digest(manifest)}


def edit(place: Path | Index, change: Change) -> None:
    """Change the manifest of a table or a snapshot, in place or by members, and sign it."""
    manifest = read(place)
    if isinstance(change, Mapping):
        manifest |= change
    else:
        change(manifest)
    write_json(path_of(place), sign(manifest))


def refresh(place: Path | Index, rows: bool = True) -> None:
    """Sign the manifest of a table or a snapshot with its files as they are now: damage that no
    checksum shows.

    Args:
        rows: state their numbers of rows, too.
    """

    def state(folder: Path, part: dict[str, Any]) -> None:
        path = folder / part["path"]
        if rows:
            part["rows"] = pq.read_metadata(path).num_rows
        part["bytes"] = path.stat().st_size
        part["sha256"] = file_digest(path)
        if "footer" in part:
            part["footer"] = footer_crc(pa.OSFile(str(path)))

    def change(manifest: dict[str, Any]) -> None:
        for window in manifest.get("windows", ()):
            for part in window["files"]:
                state(Path(place.path, "windows", window["folder"]), part)
        for part in manifest.get("files", ()):
            state(place, part)

    edit(place, change)


def reidentify(index: Index) -> str:
    """Give a snapshot the id of what its manifest says now; returns that."""
    manifest = read(index)
    ident = manifest["snapshot_id"] = snapshot_id(manifest)
    path = path_of(index)
    path.unlink()
    write_json(path.with_name(f"{ident}.json"), sign(manifest))
    Path(index.path, "HEAD").write_text(f"{ident}\n")
    return ident


def fingerprinted(manifest: dict[str, Any]) -> dict[str, Any]:
    """A lengths manifest with the fingerprint and the digest of its content."""
    return sign({**manifest, "fingerprint": lengths.fingerprint_table(manifest)})


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
