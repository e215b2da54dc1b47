"""The files of the export: lines, their index, metadataset and manifest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

import numpy as np
import yaml

from packidx.export.energon.parts import PackRange, PartWriter
from packidx.format.outputs import EnergonManifest, ExportedFile
from packidx.index import Index
from packidx.io import files
from packidx.io.output_folder import OutputFolder
from packidx.io.own_files import Kind

PACKS, IDX, YAML = "packs.jsonl", "packs.jsonl.idx", "metadataset.yaml"
KIND = Kind(
    what="folder of packs for Energon",
    manifest=".packidx.json",
    format="packidx-energon",
    names=lambda stated: (PACKS, IDX, YAML),
)
VERSION = 1
SUBFLAVORS = {"sample_type": "packidx"}
"""By which a task encoder knows these packs among other data."""


def finish(
    output: OutputFolder,
    writer: PartWriter,
    parts: list[PackRange],
    index: Index,
    aux: Mapping[str, str],
    num_media: int,
) -> EnergonManifest:
    """Put the parts together, describe them, and force all to disk."""
    output.keep(())  # a killed run may have left half a file
    described = _join(output.table, writer, parts)
    _write(output.table, YAML, _metadataset(aux))
    manifest = EnergonManifest(
        snapshot_id=index.id,
        capacity=index.capacity,
        num_packs=index.num_packs,
        num_samples=index.snapshot.result.num_pieces,
        num_media=num_media,
        encoder=index.snapshot.lengths.encoder,
        transform=index.snapshot.lengths.transform,
        sources=dict(aux),
        files=described,
    )
    text = json.dumps(manifest.to_json(), indent=2, ensure_ascii=False, sort_keys=True)
    _write(output.table, KIND.manifest, text.encode() + b"\n")
    return manifest


def _join(folder: str, writer: PartWriter, parts: list[PackRange]) -> tuple[ExportedFile, ...]:
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
    return tuple(
        ExportedFile(path=name, bytes=size, sha256=hasher.hexdigest())
        for name, size, hasher in zip((PACKS, IDX), sizes, hashers, strict=True)
    )


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
