"""A finished part of a lengths table, and the note beside it that lets the next run take it over.

The note (`OutputFolder.finish`) is written after the part is on disk, so a part with one is whole.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from packidx import digests as digests_module
from packidx.format import parquet, schema
from packidx.io import files
from packidx.io.copies import StoredFile, local_copy
from packidx.io.output_folder import OutputFolder

ROW_GROUP = 16384
"""Rows of a row group: pinned, because the file's bytes depend on it."""


@dataclass(frozen=True, slots=True)
class SourceSums:
    """Sums over one source's rows."""

    num_samples: int = 0
    """Rows, rejected ones too."""
    num_tokens: int = 0
    num_label_tokens: int = 0
    """Of the usable rows that know theirs."""
    num_unknown: int = 0
    """Usable rows that do not know their label tokens."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Rejected rows by reason."""

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())

    @property
    def num_usable(self) -> int:
        return self.num_samples - self.num_rejected

    def plus(self, other: SourceSums) -> SourceSums:
        """The rows of both."""
        return SourceSums(
            self.num_samples + other.num_samples,
            self.num_tokens + other.num_tokens,
            self.num_label_tokens + other.num_label_tokens,
            self.num_unknown + other.num_unknown,
            dict(sorted((Counter(self.rejected) + Counter(other.rejected)).items())),
        )

    def to_json(self) -> dict[str, Any]:
        """The sums as a manifest's source has them."""
        labels = None if self.num_unknown else self.num_label_tokens
        return {
            "num_samples": self.num_samples,
            "num_rejected": self.num_rejected,
            "rejected": self.rejected,
            "num_tokens": self.num_tokens,
            "num_label_tokens": labels,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """A part file that is written, and the sums over it."""

    number: int
    path: str
    rows: int
    nbytes: int
    sha256: str
    digests: tuple[str, ...]
    """`digests.column_digest` of each column that it has, in the schema's order."""
    methods: dict[str, int]
    rejected: dict[str, int]
    num_media: int
    sources: dict[str, SourceSums]


def file_name(number: int) -> str:
    """Name of part `number`."""
    return f"{_name(number)}.parquet"


def _name(number: int) -> str:
    return f"part-{number:05d}"


def write_part(
    output: OutputFolder,
    number: int,
    table: pa.Table,
    temporary: str,
    same: StoredFile | None = None,
) -> Part:
    """Write a part, by way of `begin_part`'s file, and its note: both, or nothing to take over.

    Args:
        table: of schema `ALL_LENGTHS`; a part has no more of its columns than it needs.
        same: a part file of another table that holds these very rows.

    Raises:
        FormatError: `same` is damaged.
        OSError: it cannot be written.
    """
    table = _with_what_is_known(table)
    if same is None:
        with parquet.open_writer(temporary, table.schema) as writer:
            writer.write_table(table, row_group_size=ROW_GROUP)
    else:
        with local_copy(same) as copy:
            shutil.copyfile(copy, temporary)
    files.fsync_path(temporary)
    part = Part(
        number=number,
        path=file_name(number),
        rows=table.num_rows,
        nbytes=os.path.getsize(temporary),
        sha256=digests_module.file_digest(temporary),
        digests=tuple(digests_module.column_digest(column) for column in table.columns),
        methods=_frequencies(table, "method"),
        rejected=_frequencies(table, "reason"),
        num_media=pc.sum(pc.list_value_length(table.column("media"))).as_py() or 0,
        sources=_source_sums(table),
    )
    path = os.path.join(output.table, part.path)
    os.replace(temporary, path)
    files.fsync_path(output.table)
    output.finish(_name(number), asdict(part), [path])
    return part


def _with_what_is_known(table: pa.Table) -> pa.Table:
    """`table` up to the last of the columns that a table may lack and that says something."""
    for known in (schema.ALL_LENGTHS, schema.LENGTHS_WITH_SPANS):
        last = known.names[-1]
        if last in table.column_names and pc.any(table[last].is_valid()).as_py():
            return table.select(known.names)
    return table.select(schema.LENGTHS.names)


def begin_part(output: OutputFolder, number: int) -> str:
    """Path of a new temporary file, which says that the part is being counted.

    No two processes share one: a worker that outlives its killed parent for a moment does not write
    into the next run's.
    """
    name = f".{file_name(number)}.{os.getpid()}-{secrets.token_hex(4)}"
    path = os.path.join(output.table, name)
    with open(path, "wb"):
        return path


def is_begun(output: OutputFolder, number: int) -> bool:
    """Whether a part is being counted, or was when its process died."""
    start = f".{file_name(number)}."
    return any(name.startswith(start) for name in os.listdir(output.table))


def take_over(output: OutputFolder, number: int, num_records: int) -> Part | None:
    """Part `number` as an earlier run of this very job left it, or None."""
    part = output.finished(_name(number), _from_json)
    if part is None or (part.number, part.rows) != (number, num_records):
        return None
    is_whole = digests_module.file_digest(os.path.join(output.table, part.path)) == part.sha256
    return part if is_whole else None


def _from_json(note: dict[str, Any]) -> Part:
    sources = {name: SourceSums(**sums) for name, sums in note.pop("sources").items()}
    return Part(**{**note, "digests": tuple(note["digests"]), "sources": sources})


def _frequencies(table: pa.Table, name: str) -> dict[str, int]:
    counts = pc.value_counts(table.column(name).drop_null()).to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counts, key=lambda e: e["values"])}


def _source_sums(table: pa.Table) -> dict[str, SourceSums]:
    columns = table.select(["source", "reason", "length", "label_tokens"])
    labels = [("label_tokens", "sum"), ("label_tokens", "count")]
    sums = [("length", "sum"), *labels, ([], "count_all")]
    by_source: dict[str, SourceSums] = {}
    for row in columns.group_by(["source", "reason"]).aggregate(sums).to_pylist():
        number = row["count_all"]
        if row["reason"] is None:
            unknown = number - row["label_tokens_count"]
            num_labels = row["label_tokens_sum"] or 0
            sums_of_row = SourceSums(number, row["length_sum"], num_labels, unknown)
        else:
            sums_of_row = SourceSums(number, rejected={row["reason"]: number})
        by_source[row["source"]] = by_source.get(row["source"], SourceSums()).plus(sums_of_row)
    return by_source
