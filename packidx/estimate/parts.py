"""Parts: the Parquet files of a lengths table, whose rows are known by what decides them.

`part-00000-KEY-DIGEST.parquet`: KEY is a digest of the part's tasks, DIGEST one of the file. A
part's footer lists the tasks that its rows are of. Their keys (`job.Task`), which depend on where
the shards are and when they changed, are in the manifest, and until there is one in a file beside
the part. The rows of a task are reused by its key, wherever they stand: in a table that is there,
or in what a killed run has left.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.digests import file_digest, known_digest
from packidx.format import parquet, schema
from packidx.format.lengths import PART_NAME
from packidx.format.manifest import File
from packidx.format.parquet import conform_table
from packidx.io import files, storage
from packidx.io.cache import StoredFile, local_copy

ROW_GROUP = 16384
"""Rows of a row group: pinned, because the file's bytes depend on it."""

PASSING_REASONS = frozenset(  # another run may find media, or an encoder, repaired
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
    + ("encode_failed", "transform_failed", "uncountable")
)
"""Why rows are rejected that may be usable in another run."""

_TASKS = b"tasks"  # of a part's footer: its `TaskRows` without keys, as JSON
_KEYS = ".{}.keys"  # name of the file beside a part: the keys of its tasks, as JSON
BUILT = "built by the processor"
"""Note of a row that is not counted by rules."""

Sums = Counter[tuple[str, str]]
"""Sums over rows by their name; rows by (``method`` or ``rejected``, method or reason)."""


def stated_sums(sums: Sums) -> dict[str, Any]:
    """Return the sums over a source's rows as a manifest has them."""
    rejected = numbers_of(sums, "rejected")
    is_known = not sums["num_unknown", ""]
    return {
        "num_samples": sums["num_samples", ""],
        "num_rejected": sum(rejected.values()),
        "rejected": rejected,
        "num_tokens": sums["num_tokens", ""],
        "num_label_tokens": sums["num_label_tokens", ""] if is_known else None,
        "num_media": sums["num_media", ""],
    }


def numbers_of(sums: Sums, what: str) -> dict[str, int]:
    """Return rows by ``method`` or by the reason why they are ``rejected``."""
    return {name: number for (of, name), number in sorted(sums.items()) if of == what}


def _sums_by_source(table: pa.Table) -> dict[str, Sums]:
    """Return the sums over a part's rows, by their source."""
    keys, added = ["source", "method", "reason"], ["length", "label_tokens", "media", "built"]
    more = {"media": pc.list_value_length(table["media"])}
    more["built"] = pc.starts_with(table["detail"], BUILT).cast(pa.int64())
    table = pa.table({name: table[name] for name in (*keys, *added[:2])} | more)
    wanted = [*((name, "sum") for name in added), ("label_tokens", "count"), ([], "count_all")]
    groups = table.group_by(keys).aggregate(wanted)
    by_source: dict[str, Sums] = {}
    for row in groups.to_pylist():
        number, sums = row["count_all"], by_source.setdefault(row["source"], Counter())
        sums["num_samples", ""] += number
        if row["reason"] is not None:
            sums["rejected", row["reason"]] += number
            continue
        sums["method", row["method"]] += number
        sums["num_tokens", ""] += row["length_sum"]
        sums["num_label_tokens", ""] += row["label_tokens_sum"] or 0
        sums["num_unknown", ""] += number - row["label_tokens_count"]
        sums["num_media", ""] += row["media_sum"] or 0
        sums["num_built", ""] += row["built_sum"] or 0
    return by_source


class TaskRows(NamedTuple):
    """The rows of one task in a part."""

    key: str
    """Digest of all that decides them; empty if another run may mend some."""
    num_rows: int
    columns: dict[str, str]
    """The columns of the records, and the use of each."""
    kinds: dict[str, str | None] = {}
    """Kinds of records that were compared in the task → None, or why they are built."""


class Part(NamedTuple):
    """A part that is made: its file, sums over its rows, and its tasks in order."""

    file: File
    sources: dict[str, Sums]
    tasks: list[TaskRows]


class OldRows(NamedTuple):
    """The rows of one task in a part that is there."""

    file: StoredFile
    first: int
    """Row of the part that they begin with."""
    rows: TaskRows


def write_part(folder: str, name: str, table: pa.Table, tasks: Iterable[TaskRows]) -> Part:
    """Write a part.

    Args:
        folder: where it belongs.
        name: its name up to the key.
        table: of schema `LENGTHS_WITH_SPANS`; a part without spans leaves their column out.
        tasks: of its rows, in order.

    Raises:
        OSError: it cannot be written.
    """
    first, known = 0, []
    for task in tasks:
        reasons = pc.unique(table["reason"].slice(first, task.num_rows)).to_pylist()
        known.append(task if PASSING_REASONS.isdisjoint(reasons) else task._replace(key=""))
        first += task.num_rows
    sources = _sums_by_source(table)
    if not pc.any(table["label_spans"].is_valid()).as_py():
        table = table.select(schema.LENGTHS.names)
    # Two processes may write the same part, as Ray repeats what seems to be lost.
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}")
    with files.name_in_errors(temporary), parquet.open_writer(temporary, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        tasks_of = msgspec.json.encode([task._replace(key="") for task in known])
        writer.add_key_value_metadata({_TASKS: tasks_of})
    files.fsync_path(temporary)
    nbytes, sha256 = os.path.getsize(temporary), file_digest(temporary)
    path = f"{name}-{sha256[:16]}.parquet"
    keys = msgspec.json.encode([task.key for task in known])
    files.write_atomic(os.path.join(folder, _KEYS.format(path)), keys)
    os.replace(temporary, os.path.join(folder, path))
    files.fsync_path(folder)
    file = File(path=path, rows=table.num_rows, bytes=nbytes, sha256=sha256)
    return Part(file, sources, known)


def finished_parts(folder: str) -> Iterator[tuple[StoredFile, Sequence[str]]]:
    """Yield the undamaged parts that a killed run has left, and the keys of their tasks."""
    for match in filter(None, map(PART_NAME.fullmatch, os.listdir(folder))):
        path, keys = (os.path.join(folder, name) for name in (match[0], _KEYS.format(match[0])))
        sha256 = known_digest(path)
        if sha256.startswith(match["digest"]) and os.path.exists(keys):
            yield StoredFile(path, sha256=sha256), json.loads(storage.read(keys))


def rows_in(parts: Iterable[tuple[StoredFile, Sequence[str]]]) -> dict[str, OldRows]:
    """Return the rows in parts by the keys of their tasks.

    Args:
        parts: with the keys of their tasks in order.

    Raises:
        FormatError: a part is damaged.
        OSError: a part cannot be read.
    """
    rows: dict[str, OldRows] = {}
    for file, keys in parts:
        first, stated = 0, pq.read_metadata(local_copy(file)).metadata or {}
        try:
            tasks = msgspec.json.decode(stated.get(_TASKS, b"[]"), type=list[TaskRows])
        except msgspec.MsgspecError:  # written by another version
            continue
        for key, task in zip(keys, tasks, strict=False):
            rows[key] = OldRows(file, first, task)
            first += task.num_rows
    rows.pop("", None)
    return rows


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """Read the rows of a part; raise a FormatError if it is damaged."""
    with pq.ParquetFile(local_copy(file), page_checksum_verification=True) as stored:
        return conform_table(stored.read(use_threads=False), schema.LENGTHS_WITH_SPANS)
