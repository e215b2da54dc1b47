"""Parts: the Parquet files of a lengths table, named by what decides their rows.

`part-00000-KEY-DIGEST.parquet`: KEY is a digest of all that decides the rows (`tasks.plan_parts`),
DIGEST one of the file. A killed run's part is reused if it has the name of a part that is to be
made. A part's footer lists the tasks that its rows are of, and the manifest their keys: the rows of
a task in an earlier table are reused by its key, wherever they stand.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.digests import file_digest
from packidx.format import parquet, schema
from packidx.format.lengths import PART_NAME
from packidx.format.manifest import File
from packidx.format.parquet import conform
from packidx.io import files
from packidx.io.copies import StoredFile, local_copy

ROW_GROUP = 16384
"""Rows of a row group: pinned, because the file's bytes depend on it."""

PASSING_REASONS = frozenset(  # another run may find media, or an encoder, repaired
    ("missing_media", "broken_media", "media_outside_root", "media_remote", "media_too_large")
    + ("encode_failed", "transform_failed", "uncountable")
)
"""Why rows are rejected that may be usable in another run."""

_TASKS = b"tasks"  # of a part's footer: its `TaskRows`, as JSON
_SUMMED = ("source", "method", "reason", "detail", "length", "label_tokens", "media")
BUILT = "built by the processor"
"""Note of a row that is not counted by rules."""


class SourceSums(msgspec.Struct, frozen=True):
    """Sums over one source's rows."""

    num_samples: int = 0
    """Rows, rejected ones too."""
    num_tokens: int = 0
    num_label_tokens: int = 0
    """Of the usable rows that know theirs."""
    num_unknown: int = 0
    """Usable rows that do not know their label tokens."""
    methods: dict[str, int] = {}
    """Usable rows by the way in which they were counted."""
    rejected: dict[str, int] = {}
    """Rejected rows by reason."""

    def plus(self, other: SourceSums) -> SourceSums:
        """The rows of both."""
        return SourceSums(
            self.num_samples + other.num_samples,
            self.num_tokens + other.num_tokens,
            self.num_label_tokens + other.num_label_tokens,
            self.num_unknown + other.num_unknown,
            _added(self.methods, other.methods),
            _added(self.rejected, other.rejected),
        )

    def to_json(self) -> dict[str, Any]:
        """The sums as a manifest's source has them."""
        return {
            "num_samples": self.num_samples,
            "num_rejected": sum(self.rejected.values()),
            "rejected": self.rejected,
            "num_tokens": self.num_tokens,
            "num_label_tokens": None if self.num_unknown else self.num_label_tokens,
        }


def _added(ones: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(ones) + Counter(others)).items()))


class TaskRows(NamedTuple):
    """The rows of one task in a part."""

    name: str
    """What keys of records without a name of their own begin with."""
    num_rows: int
    columns: dict[str, str]
    """Of the records, and what each is used as."""
    kinds: dict[str, str | None] = {}
    """Kinds of records that were compared in the task → None, or why they are built."""


class Part(NamedTuple):
    """A part that is made: its file, sums over its rows, and its tasks in order."""

    file: File
    num_media: int
    num_built: int
    sources: dict[str, SourceSums]
    tasks: list[TaskRows]
    keys: tuple[str, ...]
    """Digest of all that decides the rows of each task; empty if another run may mend some."""


class OldRows(NamedTuple):
    """The rows of one task in a part of the table that is there."""

    file: StoredFile
    first: int
    """Row of the part that they begin with."""
    rows: TaskRows


# -- written ---------------------------------------------------------------------------------------


def write_part(
    folder: str, name: str, table: pa.Table, tasks: list[TaskRows], keys: Sequence[str]
) -> Part:
    """Write a part.

    Args:
        folder: where it belongs.
        name: its name up to the key.
        table: of schema `LENGTHS_WITH_SPANS`; a part without spans leaves their column out.
        tasks: of its rows, in order.
        keys: of the tasks.

    Raises:
        OSError: it cannot be written.
    """
    if not pc.any(table["label_spans"].is_valid()).as_py():
        table = table.select(schema.LENGTHS.names)
    # Two processes may write the same part, as Ray repeats what seems to be lost.
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}")
    with files.naming(temporary), parquet.open_writer(temporary, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({_TASKS: msgspec.json.encode(tasks)})
    files.fsync_path(temporary)
    nbytes, sha256 = os.path.getsize(temporary), file_digest(temporary)
    file = File(
        path=f"{name}-{sha256[:16]}.parquet", rows=table.num_rows, bytes=nbytes, sha256=sha256
    )
    os.replace(temporary, os.path.join(folder, file.path))
    files.fsync_path(folder)
    return _summed(file, table, tasks, keys)


def _summed(file: File, table: pa.Table, tasks: list[TaskRows], keys: Sequence[str]) -> Part:
    num_media = pc.sum(pc.list_value_length(table.column("media"))).as_py() or 0
    num_built = pc.sum(pc.starts_with(table.column("detail"), BUILT)).as_py() or 0
    first, known = 0, []
    for task, key in zip(tasks, keys, strict=True):
        why = pc.unique(table["reason"].slice(first, task.num_rows)).to_pylist()
        known.append(key if PASSING_REASONS.isdisjoint(why) else "")
        first += task.num_rows
    return Part(file, num_media, num_built, _source_sums(table), tasks, tuple(known))


def _source_sums(table: pa.Table) -> dict[str, SourceSums]:
    keys = ["source", "method", "reason"]
    columns = table.select([*keys, "length", "label_tokens"])
    labels = [("label_tokens", "sum"), ("label_tokens", "count")]
    sums = [("length", "sum"), *labels, ([], "count_all")]
    by_source: dict[str, SourceSums] = {}
    for row in columns.group_by(keys).aggregate(sums).to_pylist():
        number = row["count_all"]
        if row["reason"] is None:
            unknown = number - row["label_tokens_count"]
            labels_of_row, methods = row["label_tokens_sum"] or 0, {row["method"]: number}
            own = SourceSums(number, row["length_sum"], labels_of_row, unknown, methods)
        else:
            own = SourceSums(number, rejected={row["reason"]: number})
        by_source[row["source"]] = by_source.get(row["source"], SourceSums()).plus(own)
    return by_source


# -- reused ----------------------------------------------------------------------------------------


def finished_parts(folder: str) -> dict[str, StoredFile]:
    """Return the undamaged parts of a killed run by their names up to the key."""
    parts = {}
    for name in os.listdir(folder):
        if match := PART_NAME.fullmatch(name):
            path = os.path.join(folder, name)
            sha256 = file_digest(path)
            if sha256.startswith(match["digest"]):
                parts[stem(name)] = StoredFile(path, os.path.getsize(path), sha256)
    return parts


def stem(path: str) -> str:
    """Return the name of a part's file up to the key."""
    return path.rpartition("-")[0]


def resumed_part(file: StoredFile, keys: Sequence[str]) -> Part:
    """Return a part that a killed run has finished."""
    with pq.ParquetFile(file.path, page_checksum_verification=True) as stored:
        table, tasks = stored.read(columns=_SUMMED, use_threads=False), _tasks_of(stored)
    assert file.nbytes is not None and file.sha256 is not None  # see `finished_parts`
    name = os.path.basename(file.path)
    made = File(path=name, rows=table.num_rows, bytes=file.nbytes, sha256=file.sha256)
    return _summed(made, table, tasks, keys)


def rows_in(files: Iterable[StoredFile], keys: Iterable[Sequence[str]]) -> dict[str, OldRows]:
    """Return the rows in parts by the keys of their tasks.

    Args:
        files: the parts.
        keys: of the tasks of each part.

    Raises:
        FormatError: a part is damaged.
        OSError: a part cannot be read.
    """
    rows: dict[str, OldRows] = {}
    for file, own in zip(files, keys, strict=False):
        with pq.ParquetFile(local_copy(file)) as stored:
            tasks, first = _tasks_of(stored), 0
        for key, task in zip(own, tasks, strict=False):
            if key:
                rows[key] = OldRows(file, first, task)
            first += task.num_rows
    return rows


def _tasks_of(stored: pq.ParquetFile) -> list[TaskRows]:
    """Return the tasks of a part; empty if its footer has none."""
    stated = (stored.metadata.metadata or {}).get(_TASKS, b"[]")
    try:
        tasks = msgspec.json.decode(stated, type=list[TaskRows])
    except msgspec.MsgspecError:
        return []
    return tasks if sum(task.num_rows for task in tasks) == stored.metadata.num_rows else []


@lru_cache(maxsize=1)
def read_part(file: StoredFile) -> pa.Table:
    """The rows of a part.

    Raises:
        FormatError: it is damaged.
        OSError: it cannot be read.
    """
    with pq.ParquetFile(local_copy(file), page_checksum_verification=True) as stored:
        return conform(stored.read(use_threads=False), schema.LENGTHS_WITH_SPANS)
