"""Packs for Megatron-Energon 7.4 as text beside the original WebDataset: no media are copied.

packs.jsonl        a line per pack (docs/energon-and-tars.md), in the schedule's order
packs.jsonl.idx    where each line begins, and the end: little-endian uint64, Energon's own index
metadataset.yaml   a MetadatasetV2 that gives `packs.jsonl` the tars' folders as ``aux``
.packidx.json      what was exported

Energon reads a ``.jsonl`` with such an index as crude samples, and hands a cooker the stores named
in ``aux``, in which media are looked up by member name (`DatasetReference.aux` in its
metadataset/metadataset_v2.py, `CrudeJsonlDatasetFactory` in flavors/jsonl): in
``.nv-meta/index.sqlite`` of the tars' folder, which `energon prepare` writes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from packidx import digests
from packidx.errors import BadRecord, OptionError, PackidxError, SourceError
from packidx.export.outputs import describe_files, labels_of, open_exported, packs_in_order
from packidx.export.packed_record import with_labels
from packidx.format.manifest import RecordRange, Shard
from packidx.index import Index, PlannedSample
from packidx.io import files, storage, urls
from packidx.io.option_files import dump_yaml
from packidx.io.output_folder import Kind, replace_output
from packidx.io.ranges import Extent
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.containers.registry import get_container
from packidx.records.conversation import Media, to_record
from packidx.records.fetch import Fetcher, check_key
from packidx.records.read import ReadRecord, RecordReader
from packidx.records.sources.folders import ENERGON as FOLDER
from packidx.run.workers import Progress, Workers, open_workers

PACKS, IDX, YAML = "packs.jsonl", "packs.jsonl.idx", "metadataset.yaml"
KIND = Kind(
    what="folder of packs for Energon",
    manifest=".packidx.json",
    format="packidx-energon",
)
VERSION = 1
SUBFLAVORS = {"sample_type": "packidx"}
"""By which a task encoder knows these packs among other data."""


_INFOS = (".info.json", ".info.yaml")  # of Energon 7, and of earlier ones
DATABASE = f"{FOLDER}/index.sqlite"
_BUCKET = re.compile(r"(s3|gs|ais)://([^/]+)(/.*|)", re.DOTALL)


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
    """Bytes of the lines and their index."""
    source_bytes: int
    """Bytes of the tars that it refers to."""
    sources: dict[str, str]
    """Name in ``aux`` → folder, as Energon sees it."""
    warnings: list[str]
    """Steps that must be taken before training, a sentence each."""
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
    writers, output = open_workers("local", workers), os.fspath(output)
    opened = open_exported(index, output, KIND, roots)
    shards, known = _packed_shards(opened), dict[str, bool]()
    paths = [opened.resolve(shard.uri) for shard in shards]
    folders = {path: prepared_folder(urls.to_absolute(path), known) for path in paths}
    names = {folder: f"src{n or ''}" for n, folder in enumerate(dict.fromkeys(folders.values()))}
    _check_keys(opened, folders)
    seen = {folder: urls.replace_root(folder, energon_roots or {}) for folder in names}
    aux = {n: as_energon_names(f) if seen[f] == f else seen[f] for f, n in names.items()}
    of_path = {path: names[folder] for path, folder in folders.items()} if len(names) > 1 else {}
    identity = digests.digest_parts(
        digests.canonical_json([KIND.format, VERSION, opened.id, folders])
    )
    with replace_output(output, KIND, identity) as built, writers:
        num_media = _write_packs(built.table, opened, of_path, writers, progress)
        planned, written = opened.snapshot.lengths, describe_files(built.table, (PACKS, IDX))
        numbers = {
            "num_packs": opened.num_packs,
            "num_samples": opened.snapshot.result.num_pieces,
            "num_media": num_media,
        }
        manifest = {
            "format": KIND.format,
            "version": VERSION,
            "snapshot_id": opened.id,
            "capacity": opened.capacity,
            **numbers,
            "encoder": planned.encoder and planned.encoder.to_json(),
            "transform": planned.transform and planned.transform.to_json(),
            "sources": aux,
            "files": written,
        }
        train = {"path": PACKS, "subflavors": SUBFLAVORS, "aux": aux}
        described_as = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        text = dump_yaml({**described_as, "splits": {"train": train}})
        files.write_atomic(os.path.join(built.table, YAML), text.encode())
        files.write_json(os.path.join(built.table, KIND.manifest), manifest)
    warnings = [
        f"{folder} has no {DATABASE}, in which Energon looks media up: run "
        f"`{prepare_command(folder)}` before training"
        for folder in names
        if not (known.get(folder) and storage.is_file(urls.join_path(folder, DATABASE)))
    ]
    if guessed := planned.methods.get("heuristic", 0):
        warnings.append(
            f"{guessed} of {sum(planned.methods.values())} lengths are guesses, so token_len is not"
            " len(input_ids): estimate with --processor"
        )
    return EnergonSummary(
        path=output,
        snapshot_id=opened.id,
        **numbers,
        nbytes=sum(file["bytes"] for file in written),
        source_bytes=sum(shard.bytes for shard in shards),
        sources=aux,
        warnings=warnings,
        seconds=time.monotonic() - begun,
    )


def _packed_shards(index: Index) -> list[Shard]:
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


def _check_keys(index: Index, folders: Mapping[str, str]) -> None:
    """Raise an OptionError if two samples of a folder have one key, by which Energon finds them."""
    shards = [index.resolve(shard.uri) for shard in index.snapshot.shards]
    columns, windows = ["key", "shard", "sample_id"], range(len(index.snapshot.windows))
    rows = pa.concat_tables(index.window("samples", number, columns) for number in windows)
    folders = pa.array(list(map(folders.get, shards))).take(rows["shard"])
    rows = rows.append_column("folder", folders).group_by(["folder", "key"])
    found = rows.aggregate([("sample_id", "count_distinct")])
    for twice in found.filter(pc.field("sample_id_count_distinct") > 1).slice(0, 1).to_pylist():
        raise OptionError(
            f"the tars of {twice['folder']} have two samples {twice['key']!r}, and Energon finds "
            "media by their names in a folder: give each sample a key of its own"
        )


def prepared_folder(path: str, known: dict[str, bool]) -> str:
    """Return the nearest folder above a tar that Energon has prepared, else its own.

    Args:
        path: absolute, or a URL.
        known: folders that were looked at, and whether they are prepared; it is added to.
    """
    own = folder = path.rpartition("/")[0] or "/"
    while True:
        if folder not in known:
            infos = (urls.join_path(folder, f"{FOLDER}/{name}") for name in _INFOS)
            known[folder] = any(map(storage.is_file, infos))
        if known[folder]:
            return folder
        above = folder.rpartition("/")[0] or "/"
        if above == folder or above.endswith(("://", ":/")):
            return own
        folder = above


def prepare_command(folder: str, *options: str) -> str:
    """Return the command that prepares a folder; one of a store as far as Energon knows it."""
    with contextlib.suppress(OptionError):
        folder = as_energon_names(folder)
    return shlex.join(["energon", "prepare", folder, *options])


def as_energon_names(folder: str) -> str:
    """A folder of a store as Energon, which reads stores through Multi-Storage Client, names it.

    ``s3://bucket/x`` is ``msc://_s3-bucket/x``, its profile that needs no configuration.

    Raises:
        OptionError: it is in a store that has no such profile.
    """
    if not urls.is_url(folder) or folder.startswith("msc://"):
        return folder
    match = _BUCKET.fullmatch(folder)
    if match is None:
        raise OptionError(
            f"Energon cannot read {folder}: say with --energon-root OLD=NEW what it is there, such "
            "as msc://PROFILE"
        )
    return f"msc://_{match[1]}-{match[2]}{match[3]}"


_TASK_PACKS = 256
"""Packs of a task: thousands of samples."""
_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other


_Reader = tuple[Index, Fetcher, Mapping[str, str]]
"""All that a process reads packs by: a tar's path → its name in ``aux``, if there are several."""


def _open_reader(index: Index, of_path: Mapping[str, str]) -> _Reader:
    return index, Fetcher(index), of_path


def _write_lines(packs: range, reader: _Reader) -> tuple[list[bytes], int]:
    """A line of each pack, and how many media they name.

    Raises:
        SourceError: a record is nested too deeply, or a name is not UTF-8.
        PackidxError: a sample cannot be exported.
    """
    lines, num_media, fetcher = [], 0, reader[1]
    for pack in map(reader[0].pack, packs):
        threads = _REQUESTS if any(map(fetcher.waits, pack.samples)) else 1
        read = functools.partial(_describe_sample, reader)
        samples = storage.map_overlapped(read, pack.samples, threads)
        num_media += sum(len(sample["media"]) for sample in samples)
        try:
            line = {"pack_id": pack.pack_id, "samples": samples}
            lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        except orjson.JSONEncodeError as error:
            keys = ", ".join(sample["key"] for sample in samples)
            raise SourceError(
                f"pack {pack.pack_id} cannot be written as JSON ({error}): leave out which of its "
                f"samples cannot, {keys[:300]}"
            ) from None
    return lines, num_media


def _describe_sample(reader: _Reader, sample: PlannedSample) -> dict[str, Any]:
    """Return what a line says of a sample; its media are located, and not read."""
    index, fetcher, of_path = reader
    if sample.shard is None or sample.offset is None or sample.nbytes is None:
        raise PackidxError(
            f"sample {sample.key!r} of snapshot {index.id[:12]} has no place in a tar: plan "
            "from a table that `packidx estimate` wrote"
        )
    path = fetcher.shard(sample.shard)
    place = RecordRange(sample.offset, sample.offset + sample.nbytes, sample.row or 0, 1)
    [raw, *others] = get_container("tar").read(path, place)
    if others or raw.key is None:
        raise SourceError(
            f"{path} has no sample at bytes {place.start} to {place.end}: restore the shard, or "
            "estimate and plan again"
        )
    check_key(path, sample, raw.key)
    record = RecordReader(fetcher.layout(sample.source)).read(raw)
    optional = {name: getattr(sample, name) for name in ("copy", "piece", "token_start")}
    optional["aux"] = of_path.get(path)
    said = record_in_words(record, path, labels_of(index)) | {"token_len": sample.length}
    return said | {name: value for name, value in optional.items() if value}


def _write_packs(
    folder: str,
    index: Index,
    of_path: Mapping[str, str],
    workers: Workers,
    progress: Progress | None,
) -> int:
    """Write `packs.jsonl` and its index; return how many media all lines name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    num_media = at = 0
    setup = functools.partial(_open_reader, index, of_path)
    path = os.path.join(folder, PACKS)
    with (
        files.name_in_errors(path),
        open(path, "wb") as packs,
        open(os.path.join(folder, IDX), "wb") as starts,
    ):
        starts.write(bytes(8))
        run = packs_in_order(index, _write_lines, setup, workers, progress, size=_TASK_PACKS)
        for _, (lines, named) in run:
            packs.write(b"".join(lines))
            ends = at + np.cumsum([len(line) for line in lines])
            starts.write(ends.astype("<u8").tobytes())
            at, num_media = int(ends[-1]), num_media + named
    return num_media


def record_in_words(
    record: ReadRecord, path: str, policy: LabelPolicy = DEFAULT_POLICY
) -> dict[str, Any]:
    """Return a record of the tar at `path` as a trainer needs it: its ``key`` in the tar, ``json``
    (``messages`` and ``tools``, or ``input_ids`` and ``labels``) and ``media``, the names of
    members, one for each placeholder in order; of a video given as frames, all.

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
    words = to_record(conversation, _to_placeholder)
    return {"key": key, "json": {**said, **words}, "media": media}


def _to_placeholder(medium: Media) -> dict[str, Any]:
    frames = {"frames": len(medium.ref)} if isinstance(medium.ref, list) else {}
    return {"type": medium.kind, **frames, **medium.stated, **medium.requests}
