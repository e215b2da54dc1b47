"""A lengths table's parts on disk, and what a folder of them holds.

Beside a finished part stands a note (`OutputFolder.finish`) that lets the next run take it over. It
is written after the part is on disk, so a part with one is whole.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx import digests as digests_module
from packidx.errors import FormatError
from packidx.format import parquet, schema
from packidx.format.lengths import LengthsManifest
from packidx.format.manifest import load
from packidx.format.schema import Sample
from packidx.io import files, urls
from packidx.io.copies import StoredFile, local_copy
from packidx.io.output_folder import OutputFolder
from packidx.io.own_files import Kind, check_free
from packidx.records.media.opener import References
from packidx.records.shards import short_names

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


class Referred(NamedTuple):
    """The files that a range of records refers to."""

    first_id: int
    """sample_id of its first row."""
    references: References


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
    columns: tuple[tuple[int, dict[str, str]], ...]
    """Of each range the number of its shard, and its records' columns and what each is used as
    (`records.ledger`)."""
    media: dict[str, Any] | None
    """`File` of what its records refer to, as JSON; None where that is nothing."""
    key: str
    """Digest of all that decides it."""


def part_name(number: int) -> str:
    """Name of part `number`."""
    return f"{_name(number)}.parquet"


def _name(number: int) -> str:
    return f"part-{number:05d}"


def write_part(
    output: OutputFolder,
    number: int,
    table: pa.Table,
    temporary: str,
    columns: Sequence[tuple[int, dict[str, str]]],
    same: StoredFile | None = None,
    referred: Sequence[Referred] = (),
    key: str = "",
) -> Part:
    """Write a part, by way of `begin_part`'s file, and its note: both, or nothing to take over.

    Args:
        table: of schema `ALL_LENGTHS`; a part has no more of its columns than it needs.
        columns: of each range the number of its shard, its columns and what each is used as.
        same: a part file of another table that holds these very rows.
        referred: what its ranges refer to.
        key: digest of all that decides the part.

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
    media = _write_media(output, number, referred)
    part = Part(
        number=number,
        path=part_name(number),
        rows=table.num_rows,
        nbytes=os.path.getsize(temporary),
        sha256=digests_module.file_digest(temporary),
        digests=tuple(digests_module.column_digest(column) for column in table.columns),
        methods=_frequencies(table, "method"),
        rejected=_frequencies(table, "reason"),
        num_media=pc.sum(pc.list_value_length(table.column("media"))).as_py() or 0,
        sources=_source_sums(table),
        columns=tuple((number, dict(sorted(own.items()))) for number, own in columns),
        media=media,
        key=key,
    )
    path = os.path.join(output.table, part.path)
    os.replace(temporary, path)
    files.fsync_path(output.table)
    paths = [path] if media is None else [path, os.path.join(output.table, media["path"])]
    output.finish(_name(number), asdict(part), paths)
    return part


def _write_media(
    output: OutputFolder, number: int, referred: Sequence[Referred]
) -> dict[str, Any] | None:
    """Write what ranges refer to beside their part: Arrow, a row for each."""
    rows = [entry for entry in referred if entry.references.names]
    if not rows:
        return None
    columns = {
        "sample_id": pa.array([entry.first_id for entry in rows], pa.int64()),
        "digest": pa.array([entry.references.digest for entry in rows], pa.string()),
        "names": pa.array([entry.references.names for entry in rows], pa.list_(pa.string())),
    }
    name = f"media-{number:05d}.arrow"
    path = os.path.join(output.table, name)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = pa.table(columns)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)
    files.fsync_path(path)
    nbytes, sha256 = os.path.getsize(path), digests_module.file_digest(path)
    return {"path": name, "rows": len(rows), "bytes": nbytes, "sha256": sha256}


def read_media(file: StoredFile) -> list[Referred]:
    """Return what `write_part` wrote of a part's media.

    Raises:
        FormatError: it has another content than its manifest says, or none.
        OSError: it cannot be read.
    """
    with local_copy(file) as copy, pa.OSFile(copy) as stored:
        rows = pa.ipc.open_file(stored).read_all().to_pylist()
    return [Referred(row["sample_id"], References(row["names"], row["digest"])) for row in rows]


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
    name = f".{part_name(number)}.{os.getpid()}-{secrets.token_hex(4)}"
    path = os.path.join(output.table, name)
    with open(path, "wb"):
        return path


def is_begun(output: OutputFolder, number: int) -> bool:
    """Return whether a part is being counted, or was when its process died."""
    start = f".{part_name(number)}."
    return any(name.startswith(start) for name in os.listdir(output.table))


def take_over(output: OutputFolder, number: int, key: str) -> Part | None:
    """Part `number` as an earlier run left it that made it of the same, or None."""
    part = output.finished(_name(number), _from_json)
    if part is None or part.key != key:
        return None
    is_whole = digests_module.file_digest(os.path.join(output.table, part.path)) == part.sha256
    return part if is_whole else None


def _from_json(note: dict[str, Any]) -> Part:
    sources = {name: SourceSums(**sums) for name, sums in note.pop("sources").items()}
    columns = tuple((number, own) for number, own in note.pop("columns"))
    digests = tuple(note.pop("digests"))
    return Part(**note, digests=digests, sources=sources, columns=columns)


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


KIND = Kind(
    what="lengths table",
    manifest="manifest.json",
    format=schema.LENGTHS_FORMAT,
    names=lambda stated: [part["path"] for part in (*stated["files"], *stated.get("media", ()))],
)


def existing_manifest(path: str) -> tuple[LengthsManifest | None, str | None]:
    """The manifest of the lengths table at `path`, if there is one that can be relied on, and what
    is wrong with one that cannot.

    Raises:
        OptionError: `path` is a file, or a folder with something in it that is no lengths table.
        OSError: it cannot be looked at.
    """
    names, _ = check_free(path, KIND)
    if KIND.manifest not in names:
        return None, None
    try:
        return load(urls.join(path, KIND.manifest), LengthsManifest, "it is written again"), None
    except (FormatError, OSError) as error:
        return None, str(error)


Rejected = tuple[str, str]
"""A source and a reason."""
_EXAMPLE = ["source", "reason", "shard", "row", "detail"]


def first_rejected(path: str, rejected: Collection[Rejected]) -> dict[Rejected, tuple[str, str]]:
    """Record (``shard#row``) and detail of the first row that a table has of each kind."""
    examples: dict[Rejected, tuple[str, str]] = {}
    manifest = load(urls.join(path, KIND.manifest), LengthsManifest, "estimate again")
    names = short_names([shard.uri for shard in manifest.shards])
    for file in manifest.files:
        wanted = [kind for kind in rejected if kind not in examples]
        if not wanted:
            break
        reasons = sorted({reason for _, reason in wanted})
        with local_copy(file.within(path)) as copy:
            rows = pq.read_table(copy, columns=_EXAMPLE, filters=[("reason", "in", reasons)])
        firsts = rows.group_by(["source", "reason"], use_threads=False).aggregate(
            [(name, "first") for name in _EXAMPLE[2:]]
        )
        for row in firsts.to_pylist():
            if (kind := (row["source"], row["reason"])) in wanted:
                record = f"{names[row['shard_first']]}#{row['row_first']}"
                examples[kind] = record, row["detail_first"]
    return examples


def first_samples(path: str, manifest: LengthsManifest, number: int) -> list[Sample]:
    """The first `number` usable rows, one of each source after the other, as a pack of their own
    would have them; fewer where there are no more.

    Raises:
        FormatError, OSError: a part of the table at `path` cannot be read.
    """
    wanted = {
        source.name: min(number, source.num_samples - source.num_rejected)
        for source in manifest.sources
    }
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _usable(path, manifest):
        if not any(len(taken[name]) < enough for name, enough in wanted.items()):
            break
        if len(taken[row["source"]]) < wanted[row["source"]]:
            taken[row["source"]].append(row)
    by_turns = chain.from_iterable(zip_longest(*(taken[name] for name in wanted)))
    rows = [row for row in by_turns if row is not None][:number]
    return [_sample(position, row) for position, row in enumerate(rows)]


def _usable(path: str, manifest: LengthsManifest) -> Iterator[dict[str, Any]]:
    for file in manifest.files:
        with local_copy(file.within(path)) as copy, pq.ParquetFile(copy) as part:
            names = [name for name in part.schema_arrow.names if name in Sample._fields]
            for batch in part.iter_batches(256, columns=[*names, "status"]):
                yield from batch.filter(pc.equal(batch["status"], "ok")).to_pylist()


def _sample(position: int, row: dict[str, Any]) -> Sample:
    whole = dict.fromkeys(("pack_id", "copy", "piece", "token_start", "start"), 0)
    known = {name: row.get(name) for name in Sample._fields}
    return Sample(**{**known, **whole, "position": position, "padded_length": row["length"]})


_PLACE = ["source", "reason", "shard", "row", "offset", "nbytes"]


def rejected_rows(
    path: str,
    manifest: LengthsManifest,
    sources: Collection[str],
    reasons: Collection[str],
    number: int,
) -> dict[str, list[dict[str, Any]]]:
    """The first `number` rows of each source that are rejected for one of `reasons`: ``shard``,
    ``row``, ``offset``, ``nbytes``.

    Raises:
        FormatError, OSError: a part of the table at `path` cannot be read.
    """
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in manifest.files:
        open_ones = [name for name in sources if len(taken[name]) < number]
        if not open_ones:
            break
        with local_copy(file.within(path)) as copy, pq.ParquetFile(copy) as part:
            for batch in part.iter_batches(columns=_PLACE):
                chosen = batch.filter(pc.is_in(batch["reason"], pa.array(sorted(reasons))))
                for row in chosen.to_pylist():
                    if row["source"] in open_ones and len(taken[row["source"]]) < number:
                        taken[row["source"]].append(row)
    return {name: rows for name, rows in taken.items() if rows}
