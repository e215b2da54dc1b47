"""Packs for Megatron-Energon 7.4 as text beside the original WebDataset: no media are copied.

packs.jsonl        a line per pack (docs/energon-and-tars.md), in the schedule's order
packs.jsonl.idx    where each line begins, and the end: little-endian uint64, Energon's own index
metadataset.yaml   a MetadatasetV2 that gives `packs.jsonl` the tars' folders as ``aux``
.packidx.json      what was exported

Energon reads a ``.jsonl`` with such an index as crude samples, and hands a cooker the stores named
in ``aux``, in which media are looked up by member name (`DatasetReference.aux` in its
metadataset/metadataset_v2.py, `CrudeJsonlDatasetFactory` in flavors/jsonl).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from packidx import digests
from packidx.errors import BadRecord, OptionError, PackidxError, SourceError
from packidx.export.energon_folders import Sources, as_energon_names
from packidx.export.outputs import described, labels_of, open_exported, packs_in_order
from packidx.export.packed_record import with_labels
from packidx.format.manifest import RecordRange, Shard
from packidx.index import Index, PlannedPack, PlannedSample
from packidx.io import files, storage
from packidx.io.option_files import dump_yaml
from packidx.io.output_folder import Kind, replacing
from packidx.io.ranges import Extent
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.containers.registry import container
from packidx.records.conversation import Media, message_of, stated_of, to_record
from packidx.records.fetch import Fetcher, check_key
from packidx.records.read import ReadRecord, RecordReader
from packidx.run import open_workers
from packidx.run.workers import Progress, Workers

PACKS, IDX, YAML = "packs.jsonl", "packs.jsonl.idx", "metadataset.yaml"
KIND = Kind(
    what="folder of packs for Energon",
    manifest=".packidx.json",
    format="packidx-energon",
)
VERSION = 1
SUBFLAVORS = {"sample_type": "packidx"}
"""By which a task encoder knows these packs among other data."""


@dataclass(frozen=True)
class EnergonSummary:
    """The contents of an export."""

    path: str
    snapshot_id: str
    num_packs: int
    num_samples: int
    """Lines have so many in all: pieces and copies are one each."""
    num_media: int
    """Members that they name."""
    nbytes: int
    """Of the lines and their index."""
    source_bytes: int
    """Of the tars it refers to."""
    sources: dict[str, str]
    """Name in ``aux`` → folder, as Energon sees it."""
    warnings: list[str]
    """What must be done before training, a sentence each."""
    seconds: float


def export_energon(
    index: str | os.PathLike[str] | Index,
    output: str | os.PathLike[str],
    *,
    roots: Mapping[str, str] | None = None,
    energon_roots: Mapping[str, str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> EnergonSummary:
    """Write a snapshot's packs for Megatron-Energon; only headers and JSON of the tars are read.

    `output` is built beside its place and put there whole. Equal arguments give equal bytes.

    Args:
        index: the index, or ``INDEX@ID``.
        output: a folder that is not there yet, or empty.
        roots: ``{old: new}`` path prefixes of data that has moved since it was planned.
        energon_roots: ``{old: new}`` prefixes of the tars' folders where Energon sees them; a
            relative one starts at `output`.
        workers: processes; the CPUs that this process may use by default.
        progress: called with how far the work is: ``('packs', done, total)``.

    Raises:
        NotFoundInIndex, FormatError: there is no such snapshot, or it cannot be read.
        OptionError: an option or `output` cannot be used, the samples are not in tars, or the plan
            is of a transform.
        SourceError, BadRecord, MismatchError: a tar is not the one that was planned.
    """
    begun = time.monotonic()
    writers = open_workers("local", workers)
    output = os.fspath(output)
    opened = open_exported(index, output, KIND, roots)
    shards = _tars(opened)
    sources = Sources([opened.resolve(shard.uri) for shard in shards])
    _check_keys(opened, sources)
    aux = {name: _as_seen(at, energon_roots or {}) for name, at in sources.folders.items()}
    facts = [KIND.format, VERSION, opened.id, sources.folders]
    identity = digests.digest(digests.canonical_json(facts))
    with replacing(output, KIND, identity) as built, writers:
        num_media = _write_packs(built.table, opened, sources, writers, progress)
        planned, written = opened.snapshot.lengths, described(built.table, (PACKS, IDX))
        manifest = {
            "format": KIND.format,
            "version": VERSION,
            "snapshot_id": opened.id,
            "capacity": opened.capacity,
            "num_packs": opened.num_packs,
            "num_samples": opened.snapshot.result.num_pieces,
            "num_media": num_media,
            "encoder": planned.encoder and planned.encoder.to_json(),
            "transform": planned.transform and planned.transform.to_json(),
            "sources": aux,
            "files": written,
        }
        files.write_atomic(os.path.join(built.table, YAML), _metadataset(aux))
        files.write_json(os.path.join(built.table, KIND.manifest), manifest)
    warnings, methods = [*sources.warnings], planned.methods
    if guessed := methods.get("heuristic", 0):
        warnings.append(
            f"{guessed} of {sum(methods.values())} lengths are guesses, so token_len is not "
            "len(input_ids): estimate with --processor"
        )
    return EnergonSummary(
        path=output,
        snapshot_id=opened.id,
        num_packs=opened.num_packs,
        num_samples=opened.snapshot.result.num_pieces,
        num_media=num_media,
        nbytes=sum(file["bytes"] for file in written),
        source_bytes=sum(shard.bytes for shard in shards),
        sources=aux,
        warnings=warnings,
        seconds=time.monotonic() - begun,
    )


def _tars(index: Index) -> list[Shard]:
    """The shards of the packed sources.

    Raises:
        PackidxError: the plan does not say where its samples are, or has none.
        OptionError: one is not a tar.
    """
    if not index.num_packs:
        raise OptionError(f"snapshot {index.id[:12]} has no pack, so there is nothing to export")
    packed = {source.name for source in index.snapshot.sources if source.num_samples}
    shards = [shard for shard in index.snapshot.shards if shard.source in packed]
    if not shards:
        raise PackidxError(
            f"snapshot {index.id[:12]} was planned from bare lengths and does not say where its "
            "samples are: plan from a table that `packidx estimate` wrote"
        )
    for shard in shards:
        if shard.container != "tar":
            raise OptionError(
                f"{shard.uri} is not a tar, and only in tars Energon finds media: `packidx export "
                "wds` writes tars that hold the packs"
            )
    return shards


def _check_keys(index: Index, sources: Sources) -> None:
    """Raise an OptionError if two samples of a folder have one key, by which Energon finds them."""
    shards = [index.resolve(shard.uri) for shard in index.snapshot.shards]
    columns, windows = ["key", "shard", "sample_id"], range(len(index.snapshot.windows))
    rows = pa.concat_tables(index.window("samples", number, columns) for number in windows)
    folders = pa.array(list(map(sources.folder_of, shards))).take(rows["shard"])
    rows = rows.append_column("folder", folders).group_by(["folder", "key"])
    found = rows.aggregate([("sample_id", "count_distinct")])
    for twice in found.filter(pc.field("sample_id_count_distinct") > 1).slice(0, 1).to_pylist():
        raise OptionError(
            f"the tars of {twice['folder']} have two samples {twice['key']!r}, and Energon finds "
            "media by their names in a folder: give each sample a key of its own"
        )


def _as_seen(folder: str, roots: Mapping[str, str]) -> str:
    """A folder of tars as `metadataset.yaml` names it."""
    for old in sorted(roots, key=len, reverse=True):
        prefix = old.rstrip("/")
        if folder in (prefix, old) or folder.startswith(f"{prefix}/"):
            return roots[old].rstrip("/") + folder[len(prefix) :]
    return as_energon_names(folder)


_TASK_PACKS = 256
"""Packs of a task: thousands of samples."""
_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other


@dataclass(frozen=True, slots=True)
class _Reader:
    """All that a process reads packs by."""

    index: Index
    sources: Sources
    fetcher: Fetcher


def _reader(index: Index, shards: Sequence[str]) -> _Reader:
    return _Reader(index, Sources(shards), Fetcher(index))


def _lines(packs: range, reader: _Reader) -> tuple[list[bytes], int]:
    """A line of each pack, and how many media they name.

    Raises:
        PackidxError: a sample cannot be exported.
    """
    lines, num_media = [], 0
    for number in packs:
        pack = reader.index.pack(number)
        waits = any(map(reader.fetcher.waits, pack.samples))
        records = storage.overlapped(
            functools.partial(_record, reader), pack.samples, _REQUESTS if waits else 1
        )
        for record in records:
            num_media += len(record.media)
        lines.append(pack_line(pack, records, reader.sources))
    return lines, num_media


def _record(reader: _Reader, sample: PlannedSample) -> Record:
    """Return what a line says of a sample; its media are located, and not read."""
    if sample.shard is None or sample.offset is None or sample.nbytes is None:
        raise PackidxError(
            f"sample {sample.key!r} of snapshot {reader.index.id[:12]} has no place in a tar: plan "
            "from a table that `packidx estimate` wrote"
        )
    path = reader.fetcher.shard(sample.shard)
    place = RecordRange(sample.offset, sample.offset + sample.nbytes, sample.row or 0, 1)
    [raw, *others] = container("tar").read(path, place)
    if others or raw.key is None:
        raise SourceError(
            f"{path} has no sample at bytes {place.start} to {place.end}: restore the shard, or "
            "estimate and plan again"
        )
    check_key(path, sample, raw.key)
    record = RecordReader(reader.fetcher.layout(sample.source)).read(raw)
    return record_in_words(record, path, labels_of(reader.index))


def _write_packs(
    folder: str, index: Index, sources: Sources, workers: Workers, progress: Progress | None
) -> int:
    """Write `packs.jsonl` and its index; return how many media all lines name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    num_media = at = 0
    setup = functools.partial(_reader, index, sources.shards)
    path = os.path.join(folder, PACKS)
    with (
        files.naming(path),
        open(path, "wb") as packs,
        open(os.path.join(folder, IDX), "wb") as starts,
    ):
        starts.write(bytes(8))
        run = packs_in_order(index, _lines, setup, workers, progress, size=_TASK_PACKS)
        for _, (lines, named) in run:
            packs.write(b"".join(lines))
            ends = at + np.cumsum([len(line) for line in lines])
            starts.write(ends.astype("<u8").tobytes())
            at, num_media = int(ends[-1]), num_media + named
    return num_media


def _metadataset(aux: Mapping[str, str]) -> bytes:
    description = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"path": PACKS, "subflavors": SUBFLAVORS, "aux": dict(aux)}},
    }
    return dump_yaml(description).encode()


class Record(NamedTuple):
    """A line's words of a sample."""

    path: str
    """Its tar."""
    key: str
    """In its tar."""
    json: dict[str, Any]
    """The record: ``messages`` (and ``tools``), or ``input_ids`` (and ``labels``)."""
    media: list[str]
    """Names of members, one for each placeholder in order; of a video given as frames, all."""


def record_in_words(record: ReadRecord, path: str, policy: LabelPolicy = DEFAULT_POLICY) -> Record:
    """Return a record of the tar at `path` as a trainer needs it.

    Raises:
        BadRecord: it cannot be understood; it could when it was counted.
        SourceError: it has a medium that is not a member of its tar.
    """
    key = record.key or ""
    if record.conversation is None:
        error = record.error or BadRecord("bad_record", "no conversation")
        raise BadRecord(error.reason, f"{error.detail} ({path})")
    conversation = with_labels(record.conversation, policy)
    media: list[str] = []
    for medium in conversation.media:
        for ref in medium.ref if isinstance(medium.ref, list) else [medium.ref]:
            if not isinstance(ref, Extent):
                raise SourceError(
                    f"sample {key!r} of {path} has a medium that is not a member of its tar, where "
                    "Energon could find it: `packidx export wds` writes tars that hold all"
                )
            media.append(ref.name)
    ident = None if record.raw is None else record.raw.columns.get("id")
    said = {} if ident in (None, key) else {"id": ident}
    words = to_record(conversation, lambda turn: message_of(turn, _placeholder))
    return Record(path, key, {**said, **words}, media)


def pack_line(pack: PlannedPack, records: Sequence[Record], sources: Sources) -> bytes:
    """A pack's line, the newline included.

    Args:
        records: of its samples, by position.

    Raises:
        SourceError: a record is nested too deeply, or a name is not UTF-8.
    """
    samples: list[dict[str, Any]] = []
    for record, located in zip(records, pack.samples, strict=True):
        said: dict[str, Any] = {"key": record.key, "json": record.json}
        said |= {"media": record.media, "token_len": located.length}
        optional = {name: getattr(located, name) for name in ("copy", "piece", "token_start")}
        optional["aux"] = sources.name_of(record.path)
        samples.append(said | {name: value for name, value in optional.items() if value})
    try:
        line = {"pack_id": pack.pack_id, "samples": samples}
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        keys = ", ".join(record.key for record in records)
        raise SourceError(
            f"pack {pack.pack_id} cannot be written as JSON ({error}): leave out which of its "
            f"samples cannot, {keys[:300]}"
        ) from None


def _placeholder(medium: Media) -> dict[str, Any]:
    stated = stated_of(medium)
    if isinstance(medium.ref, list):
        stated = {"frames": len(medium.ref)} | stated
        stated.pop("num_frames", None)
    return {"type": medium.kind} | stated
