"""``.nv-meta``: what Megatron-Energon reads of a folder of tars, as its `energon prepare` makes it.

Forms: `WebdatasetInfo` and `WebdatasetSplits` (flavors/webdataset/structs.py) and
`SqliteIndexWriter` (flavors/webdataset/indexing.py) of Energon 7.4.1; Energon 5.0.0 wants
``.info.yaml``, and no member in it but ``shard_counts``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Sequence

from packidx.export.wds.shards import IndexEntry, WrittenTar
from packidx.io import files

FOLDER = ".nv-meta"
NAMES = (".info.json", ".info.yaml", "split.yaml", "dataset.yaml", "index.sqlite", "index.uuid")
"""All files of the folder."""

SAMPLE_TYPE = "packed_multi_mix_qa"
"""Subflavor by which a cooker knows the samples (LoongForge's name)."""

_DATASET = f"""\
__module__: megatron.energon
__class__: CrudeWebdataset
subflavors:
  sample_type: {SAMPLE_TYPE}
"""

_TABLES = (
    """CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
       sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)""",
    """CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
       content_byte_offset INTEGER, content_byte_size INTEGER)""",
)
_INDICES = (
    "idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, "
    "content_byte_offset, content_byte_size)",
)


def write_nv_meta(
    folder: str,
    shards: Sequence[WrittenTar],
    entries: Iterable[Sequence[IndexEntry]],
    identity: str,
) -> None:
    """Write the folder ``.nv-meta`` beside the tars.

    Args:
        entries: the samples of each shard, in the same order.
        identity: digest of everything that decides the tars; ``index.uuid`` follows from it.

    Raises:
        OSError: it cannot be written.
    """
    meta = os.path.join(folder, FOLDER)
    os.makedirs(meta, exist_ok=True)
    counts = {"shard_counts": {shard.path: shard.num_packs for shard in shards}}
    texts = {
        ".info.json": json.dumps(counts, indent=2) + "\n",
        # JSON is YAML; a line a shard, so that diff and grep serve.
        ".info.yaml": "shard_counts:\n" + "".join(f"  {s.path}: {s.num_packs}\n" for s in shards),
        "split.yaml": f"split_parts:\n  train:\n  - {_range(shards)}\n  val: []\n  test: []\n"
        "exclude: []\n",
        "dataset.yaml": _DATASET,
        "index.uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"packidx:{identity}")),
    }
    for name, text in texts.items():
        files.write_atomic(os.path.join(meta, name), text.encode())
    _write_index(os.path.join(meta, "index.sqlite"), entries)
    files.fsync_path(meta)


def _range(shards: Sequence[WrittenTar]) -> str:
    """The shards' names in braces, as Energon expands them; in quotes, for YAML."""
    first, last = (shard.path.removesuffix(".tar") for shard in (shards[0], shards[-1]))
    stem, _, low = first.rpartition("-")
    if first == last:
        return f"{first}.tar"
    return f'"{stem}-{{{low}..{last.rpartition("-")[2]}}}.tar"'


def _write_index(path: str, entries: Iterable[Sequence[IndexEntry]]) -> None:
    """Where each sample and each part of it is in the tars."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")  # it is written anew after a crash
        for table in _TABLES:
            database.execute(table)
        for number, samples in enumerate(entries):
            database.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                ((number, key, at, *span) for at, (key, *span, _) in enumerate(samples)),
            )
            database.executemany(
                "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                (
                    (number, at, *part)
                    for at, (_, _, _, parts) in enumerate(samples)
                    for part in parts
                ),
            )
        for index in _INDICES:
            database.execute(f"CREATE INDEX {index}")
        database.commit()
    os.chmod(path, 0o644)
    files.fsync_path(path)
