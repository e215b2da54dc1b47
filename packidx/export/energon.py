"""Packs for Megatron-Energon 7.4 as text beside the original WebDataset: no media are copied.

packs.jsonl        a line per pack (docs/energon-and-tars.md), in the schedule's order
packs.jsonl.idx    where each line begins, and the end: little-endian uint64, Energon's own index
metadataset.yaml   a MetadatasetV2 that gives `packs.jsonl` the tars' folders as ``aux``
.packidx.json      what was exported; the mark of a folder that an export may replace

Energon reads a ``.jsonl`` with such an index as crude samples, and hands a cooker the stores named
in ``aux``, in which media are looked up by member name (`DatasetReference.aux` in its
metadataset/metadataset_v2.py, `CrudeJsonlDatasetFactory` in flavors/jsonl).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import yaml

from packidx import digests
from packidx.errors import BadRecord, OptionError, PackidxError, SourceError
from packidx.export.energon_folders import Sources, as_energon_names
from packidx.export.outputs import open_exported
from packidx.format.manifest import Layout, Shard
from packidx.format.outputs import EnergonManifest, ExportedFile
from packidx.index import Index, Pack, Sample
from packidx.io import files, ranges, storage, urls
from packidx.io.output_folder import replacing
from packidx.io.own_files import Kind
from packidx.io.ranges import ReadAhead
from packidx.records.containers import tar
from packidx.records.containers.base import BrokenFile
from packidx.records.conversation import Media, Turn, content_of, to_record
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import standard
from packidx.records.fetch import Fetcher, check_key
from packidx.run import open_workers
from packidx.run.workers import Progress, WorkerDied, Workers

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
    relative: bool = False,
    energon_roots: Mapping[str, str] | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> EnergonSummary:
    """Write a snapshot's packs for Megatron-Energon; only headers and JSON of the tars are read.

    `output` is built beside its place and swapped in whole. Equal arguments give equal bytes.

    Args:
        index: the index, or ``INDEX@ID``.
        output: a folder; an export that is there is replaced.
        roots: ``{old: new}`` path prefixes of data that has moved since it was planned.
        relative: name the tars' folders relative to `output`, not absolutely.
        energon_roots: ``{old: new}`` prefixes of the tars' folders where Energon sees them.
        workers: processes; the CPUs that this process may use by default.
        engine: ``'local'`` or ``'ray'``, as for `packidx.estimate_lengths`: who writes. The bytes
            are the same.
        progress: called with how far the work is: ``('packs', done, total)``.

    Raises:
        NotFoundInIndex, FormatError: there is no such snapshot, or it cannot be read.
        OptionError: an option or `output` cannot be used, the samples are not in tars, or the plan
            is of a transform.
        SourceError, BadRecord, MismatchError: a tar is not the one that was planned.
    """
    begun = time.monotonic()
    writers = open_workers(engine, workers)
    output = os.fspath(output)
    opened = open_exported(index, output, KIND, roots)
    shards = _tars(opened)
    sources = Sources([opened.resolve(shard.uri) for shard in shards])
    _check_roots(energon_roots or {}, list(sources.folders.values()))
    aux = {
        name: _as_seen(folder, output, relative, energon_roots or {})
        for name, folder in sources.folders.items()
    }
    facts = [KIND.format, VERSION, opened.id, sources.folders]
    identity = digests.digest(digests.canonical_json(facts))
    with replacing(output, KIND, identity) as built, writers:
        described, num_media = _write_packs(built.table, opened, sources, writers, progress)
        files.write_atomic(os.path.join(built.table, YAML), _metadataset(aux))
        manifest = EnergonManifest(
            snapshot_id=opened.id,
            capacity=opened.capacity,
            num_packs=opened.num_packs,
            num_samples=opened.snapshot.result.num_pieces,
            num_media=num_media,
            encoder=opened.snapshot.lengths.encoder,
            transform=opened.snapshot.lengths.transform,
            sources=dict(aux),
            files=described,
        )
        text = json.dumps(manifest.to_json(), indent=2, ensure_ascii=False, sort_keys=True)
        files.write_atomic(os.path.join(built.table, KIND.manifest), text.encode() + b"\n")
    warnings, methods = [*sources.warnings], opened.snapshot.lengths.methods
    if guessed := methods.get("heuristic", 0):
        warnings.append(
            f"{guessed} of {sum(methods.values())} lengths are guesses, so token_len is not "
            "len(input_ids): estimate with --processor"
        )
    return EnergonSummary(
        path=output,
        snapshot_id=opened.id,
        num_packs=opened.num_packs,
        num_samples=manifest.num_samples,
        num_media=num_media,
        nbytes=sum(file.bytes for file in manifest.files),
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


def _as_seen(folder: str, output: str, relative: bool, roots: Mapping[str, str]) -> str:
    """A folder of tars as `metadataset.yaml` names it."""
    for old in sorted(roots, key=len, reverse=True):
        prefix = old.rstrip("/")
        if folder in (prefix, old) or folder.startswith(f"{prefix}/"):
            return roots[old].rstrip("/") + folder[len(prefix) :]
    if relative:
        here, there = urls.absolute(output), urls.absolute(folder)
        if _root_of(here) != _root_of(there):
            raise OptionError(f"{folder} and {output} are not in one place: leave --relative out")
        return os.path.relpath(there[len(_root_of(there)) :], here[len(_root_of(here)) :])
    return as_energon_names(folder)


def _root_of(path: str) -> str:
    """Scheme and bucket; nothing of a path of this machine."""
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""


def _check_roots(roots: Mapping[str, str], folders: Sequence[str]) -> None:
    """Refuse a root with which no folder begins: a slip that training would find.

    Raises:
        OptionError: there is one.
    """
    for old in roots:
        if not any(f"{folder}/".startswith(f"{old.rstrip('/')}/") for folder in folders):
            raise OptionError(
                f"--energon-root {old}=…: no folder of tars begins so, there is {folders[0]}"
            )


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
        found = storage.overlapped(
            functools.partial(_record, reader), pack.samples, _REQUESTS if waits else 1
        )
        for record, members, path in found:
            reader.sources.check(path, members, record.media)
            num_media += len(record.media)
        lines.append(pack_line(pack, [record for record, *_ in found]))
    return lines, num_media


def _record(reader: _Reader, sample: Sample) -> tuple[Record, TarMembers, str]:
    """Return what a line says of a sample, and where that is read."""
    if sample.shard is None or sample.offset is None or sample.nbytes is None:
        raise PackidxError(
            f"sample {sample.key!r} of snapshot {reader.index.id[:12]} has no place in a tar: plan "
            "from a table that `packidx estimate` wrote"
        )
    path = reader.fetcher.shard(sample.shard)
    members = read_members(path, sample.offset, sample.nbytes)
    check_key(path, sample, members.key)
    record = energon_record(members, path, reader.fetcher.layout(sample.source))
    return record._replace(aux=reader.sources.name_of(path)), members, path


def _write_packs(
    folder: str, index: Index, sources: Sources, workers: Workers, progress: Progress | None
) -> tuple[tuple[ExportedFile, ...], int]:
    """Write `packs.jsonl` and its index; what they are, and how many media all lines name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    num_packs, num_media = index.num_packs, 0
    tasks = [
        range(first, min(first + _TASK_PACKS, num_packs))
        for first in range(0, num_packs, _TASK_PACKS)
    ]
    setup = functools.partial(_reader, index, sources.shards)
    paths = [os.path.join(folder, name) for name in (PACKS, IDX)]
    hashers, at = [hashlib.sha256(), hashlib.sha256()], 0
    with open(paths[0], "wb") as packs, open(paths[1], "wb") as starts:

        def put(number: int, data: bytes) -> None:
            (packs, starts)[number].write(data)
            hashers[number].update(data)

        put(1, bytes(8))
        try:
            for number, (lines, named) in workers.run(_lines, tasks, setup, in_turn=True):
                put(0, b"".join(lines))
                ends = at + np.cumsum([len(line) for line in lines])
                put(1, ends.astype("<u8").tobytes())
                at, num_media = int(ends[-1]), num_media + named
                if progress is not None:
                    progress("packs", tasks[number].stop, num_packs)
        except WorkerDied as died:
            raise died.error("wrote packs") from None
        for file in (packs, starts):
            file.flush()
            os.fsync(file.fileno())
    described = tuple(
        ExportedFile(path=name, bytes=os.path.getsize(path), sha256=hasher.hexdigest())
        for name, path, hasher in zip((PACKS, IDX), paths, hashers, strict=True)
    )
    return described, num_media


def _metadataset(aux: Mapping[str, str]) -> bytes:
    description = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"path": PACKS, "subflavors": SUBFLAVORS, "aux": dict(aux)}},
    }
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True, width=1 << 20)
    return str(text).encode()


_FACTS = ("height", "width", "num_frames", "fps", "frame_indices")
_LOCAL_BLOCK = 4096  # a header and a short record; a request to a store asks for more


class MemberName(bytes):
    """A member's name (UTF-8), where a record would have its content."""


class TarMembers(NamedTuple):
    """A sample of a tar, of which its JSON alone is read."""

    key: str
    sample: tar.Sample
    ranges: dict[str, tuple[int, int]]
    """First byte and size of each member's content, by name."""


def read_members(path: str, offset: int, nbytes: int) -> TarMembers:
    """A sample of the tar at `path`, by its place, without reading its media.

    Raises:
        SourceError: the shard cannot be read or has something else there.
    """
    block = ranges.BLOCK if urls.is_url(path) else _LOCAL_BLOCK
    end = offset + nbytes
    read = ReadAhead(path, end, block, block).read
    try:
        run = tar.members(read, offset, end, content=tar.is_record, is_archive=False)
        samples = list(tar.samples_of(run))
    except BrokenFile as error:
        raise _changed(path, str(error)) from None
    if len(samples) != 1 or "json" not in samples[0].extensions:
        raise _changed(path, f"it has no sample at bytes {offset} to {end}")
    [sample] = samples
    held = sample.extensions.values()
    return TarMembers(sample.key, sample, {each.name: (each.offset, each.nbytes) for each in held})


def _changed(path: str, what: str) -> SourceError:
    return SourceError(f"{path}: {what}; restore the shard, or estimate and plan again")


def _name(path: str, name: str) -> MemberName:
    try:
        return MemberName(name.encode())
    except UnicodeEncodeError:
        raise SourceError(
            f"{path}: the name of member {name!r} is not UTF-8, so nothing can look it up: rename "
            "it"
        ) from None


class Record(NamedTuple):
    """A line's words of a sample."""

    key: str
    """In its tar."""
    json: dict[str, Any]
    """The record: ``messages`` (and ``tools``), or ``input_ids`` (and ``labels``)."""
    media: list[str]
    """Names of members, one for each placeholder in order; of a video given as frames, all."""
    aux: str | None = None
    """Which of several folders its shard is in."""


def energon_record(members: TarMembers, shard: str, layout: Layout) -> Record:
    """A sample as a trainer needs it.

    Args:
        members: the sample; its media get names in the place of their contents.
        shard: its path.
        layout: its source's.

    Raises:
        BadRecord: the record cannot be understood; it could when it was counted.
        SourceError: it has a medium that is not a member of its tar.
    """
    for extension, member in members.sample.extensions.items():
        if extension != "json":
            member.data = _name(shard, member.name)
    try:
        record = standard(tar.record_of(members.sample), layout)
    except BadRecord as error:
        raise BadRecord(error.reason, f"{error.detail} ({shard})") from None
    return record_in_words(members.key, record, shard)


def record_in_words(key: str, record: dict[str, Any], shard: str) -> Record:
    """A record in the standard names, `MemberName` where its media are, as a trainer needs it.

    Raises:
        BadRecord, SourceError: as `energon_record`.
    """
    conversation = parse(record)
    media: list[str] = []
    for medium in conversation.media:
        for ref in medium.ref if isinstance(medium.ref, list) else [medium.ref]:
            if not isinstance(ref, MemberName):
                raise SourceError(
                    f"sample {key!r} of {shard} has a medium that is not a member of its tar, "
                    "where "
                    "Energon could find it: `packidx export wds` writes tars that hold all"
                )
            media.append(ref.decode())
    ident = record.get("id")
    said = {} if ident in (None, key) else {"id": ident}
    return Record(key, {**said, **to_record(conversation, _message)}, media)


def pack_line(pack: Pack, samples: Sequence[Record]) -> bytes:
    """A pack's line, the newline included.

    Args:
        samples: the pack's, by position.

    Raises:
        SourceError: a record is nested too deeply.
    """
    epoch = pack.stats["epoch"]
    line = {
        "pack_id": pack.pack_id,
        **({"epoch": epoch} if epoch else {}),
        "samples": [
            _sample(sample, located) for sample, located in zip(samples, pack.samples, strict=True)
        ],
    }
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        keys = ", ".join(sample.key for sample in samples)
        raise SourceError(
            f"pack {pack.pack_id} cannot be written as JSON ({error}): leave out which of its "
            f"samples cannot, {keys[:300]}"
        ) from None


def _sample(sample: Record, located: Sample) -> dict[str, Any]:
    optional = {
        "copy": located.copy,
        "piece": located.piece,
        "token_start": located.token_start,
        "aux": sample.aux,
    }
    return {
        "key": sample.key,
        "json": sample.json,
        "media": sample.media,
        "token_len": located.length,
        **{name: value for name, value in optional.items() if value},
    }


def _message(turn: Turn) -> dict[str, Any]:
    flag = {} if turn.train is None else {"train": turn.train}
    content = content_of(turn, lambda medium: dict(_placeholder(medium)))
    return {"role": turn.role, "content": content, **turn.extra, **flag}


def _placeholder(medium: Media) -> Iterator[tuple[str, Any]]:
    yield "type", medium.kind
    if isinstance(medium.ref, list):
        yield "frames", len(medium.ref)
    for name in _FACTS:
        value = getattr(medium, name)
        if value is not None and not (name == "num_frames" and isinstance(medium.ref, list)):
            yield name, list(value) if isinstance(value, tuple) else value
    if medium.tokens is not None:
        yield "n_tokens", medium.tokens
