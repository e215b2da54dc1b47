"""Runs of packs written as lines, in any number of processes, and put together as the export.

What is finished is not done again:

parts/00000.jsonl   beside the table (`OutputFolder`): lines of packs
notes/00000.json    says that they are all there, and how many media they name
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import yaml

from packidx.errors import PackidxError
from packidx.export.energon.lines import Written, pack_line, read_named, written
from packidx.export.energon.sources import Sources
from packidx.format.outputs import EnergonManifest, ExportedFile
from packidx.index import Index, Sample
from packidx.io import files, urls
from packidx.io.output_folder import OutputFolder
from packidx.io.own_files import Kind
from packidx.records.fetch import Fetcher, check_key
from packidx.run.progress import Progress
from packidx.run.workers import WorkerDied, Workers

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

_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other


class PackRange(NamedTuple):
    """Packs `first` … `end` - 1."""

    number: int
    first: int
    end: int


class PartWriter:
    """Writes parts of one export, which is built in `output`."""

    def __init__(self, index: Index, sources: Sources, output: OutputFolder) -> None:
        self._index, self._sources, self._output = index, sources, output
        self._fetcher = Fetcher(index)
        self._threads: ThreadPoolExecutor | None = None

    @property
    def setup(self) -> Callable[[], PartWriter]:
        """What makes the same in another process."""
        given = self._index, self._sources.shards, self._output
        return functools.partial(_part_writer, *given)

    def read(self, part: PackRange) -> bytes:
        """A finished part's lines."""
        with open(self._path(part), "rb") as file:
            return file.read()

    def num_media(self, part: PackRange) -> int | None:
        """How many media a part names; None where it must be written."""
        return self._output.finished(_name(part), lambda facts: int(facts["num_media"]))

    def write(self, part: PackRange) -> int:
        """Write a part and its note; how many media it names.

        Raises:
            PackidxError: a sample cannot be exported.
        """
        lines, num_media = [], 0
        for number in range(part.first, part.end):
            pack = self._index.pack(number)
            samples = list(self._all_written(pack.samples))
            lines.append(pack_line(pack, samples))
            num_media += sum(len(sample.media) for sample in samples)
        path = self._path(part)
        files.write_atomic(path, b"".join(lines))
        self._output.finish(_name(part), {"num_media": num_media}, [path])
        return num_media

    def _all_written(self, samples: Sequence[Sample]) -> Iterator[Written]:
        shards = self._index.snapshot.shards
        if not any(
            urls.is_url(self._index.resolve(shards[sample.shard].uri))
            for sample in samples
            if sample.shard is not None
        ):
            return map(self._written, samples)
        self._threads = self._threads or ThreadPoolExecutor(_REQUESTS)
        return self._threads.map(self._written, samples)

    def _written(self, sample: Sample) -> Written:
        if sample.shard is None or sample.offset is None or sample.nbytes is None:
            raise PackidxError(
                f"sample {sample.key!r} of snapshot {self._index.id[:12]} has no place in a tar: "
                "plan from a table that `packidx estimate` wrote"
            )
        path = self._fetcher.shard(sample.shard)
        layout = self._fetcher.layout(sample.source)
        named = read_named(path, sample.offset, sample.nbytes, layout)
        check_key(path, sample, named.key)
        line = written(named, path, self._sources.name_of(path))
        self._sources.check(path, named, line.media)
        return line

    def _path(self, part: PackRange) -> str:
        return os.path.join(self._output.scratch("parts"), f"{_name(part)}.jsonl")


def _name(part: PackRange) -> str:
    return f"{part.number:05d}"


def _part_writer(index: Index, shards: Sequence[str], output: OutputFolder) -> PartWriter:
    return PartWriter(index, Sources(shards), output)


def _write_part(part: PackRange, writer: PartWriter) -> int:
    return writer.write(part)


def write_parts(
    writer: PartWriter, parts: Sequence[PackRange], workers: Workers, progress: Progress | None
) -> tuple[int, int]:
    """Write all parts that are not there; how many were, and how many media all of them name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    known = [writer.num_media(part) for part in parts]
    num_media = sum(number for number in known if number is not None)
    left = [part for part, number in zip(parts, known, strict=True) if number is None]
    written_parts = workers.run(_write_part, left, writer.setup, here=lambda: writer, in_turn=True)
    try:
        for number, named in written_parts:
            num_media += named
            if progress is not None:
                progress("packs", left[number].end, parts[-1].end)
    except WorkerDied as died:
        raise died.error("wrote packs", "use fewer workers; what was written is kept") from None
    return len(parts) - len(left), num_media


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
    files.write_atomic(os.path.join(output.table, YAML), _metadataset(aux))
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
    files.write_atomic(os.path.join(output.table, KIND.manifest), text.encode() + b"\n")
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
