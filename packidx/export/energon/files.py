"""The files of the export: lines, their index, metadataset and manifest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml

from packidx.export.energon.parts import Part, PartWriter
from packidx.index import Index
from packidx.io import files
from packidx.io.output_folder import Place

FORMAT = "packidx-energon"
VERSION = 1
MANIFEST, PACKS, IDX, YAML = ".packidx.json", "packs.jsonl", "packs.jsonl.idx", "metadataset.yaml"
SUBFLAVORS = {"sample_type": "packidx"}
"""By which a task encoder knows these packs among other data."""


def finish(
    place: Place,
    writer: PartWriter,
    parts: list[Part],
    index: Index,
    aux: Mapping[str, str],
    num_media: int,
) -> dict[str, Any]:
    """Put the parts together, describe them, and force all to disk."""
    files.remove_tree(place.table)  # a killed run may have left half a file
    os.makedirs(place.table)
    described = _join(place.table, writer, parts)
    _write(place.table, YAML, _metadataset(aux))
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "snapshot_id": index.id,
        "capacity": index.capacity,
        "num_packs": index.num_packs,
        "num_samples": index.manifest["result"]["num_pieces"],
        "num_media": num_media,
        "encoder": index.manifest["lengths"].get("encoder"),
        "transform": index.manifest["lengths"].get("transform"),
        "sources": dict(aux),
        "files": described,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=True)
    _write(place.table, MANIFEST, text.encode() + b"\n")
    return manifest


def _join(folder: str, writer: PartWriter, parts: list[Part]) -> list[dict[str, Any]]:
    """`packs.jsonl` and its index of the parts' lines."""
    at, hashers, sizes = 0, [hashlib.sha256(), hashlib.sha256()], [0, 0]
    with (
        open(os.path.join(folder, PACKS), "wb") as lines,
        open(os.path.join(folder, IDX), "wb") as starts,
    ):

        def put(number: int, data: bytes) -> None:
            (lines, starts)[number].write(data)
            hashers[number].update(data)
            sizes[number] += len(data)

        put(1, bytes(8))
        for part in parts:
            data = writer.read(part)
            put(0, data)
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1 + at
            put(1, ends.astype("<u8").tobytes())
            at += len(data)
        for file in (lines, starts):
            file.flush()
            os.fsync(file.fileno())
    return [
        {"path": name, "bytes": size, "sha256": hasher.hexdigest()}
        for name, size, hasher in zip((PACKS, IDX), sizes, hashers, strict=True)
    ]


def _metadataset(aux: Mapping[str, str]) -> bytes:
    description = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"path": PACKS, "subflavors": SUBFLAVORS, "aux": dict(aux)}},
    }
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True, width=1 << 20)
    return str(text).encode()


def _write(folder: str, name: str, data: bytes) -> None:
    files.write_atomic(os.path.join(folder, name), data)


def own_files(folder: str) -> set[str]:
    """Names of an earlier export's files; none where it is none."""
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            is_export = json.load(file)["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_export = False
    return {MANIFEST, PACKS, IDX, YAML} if is_export else set()
