"""Runs of packs written as lines, in any number of processes; what is finished is not done again.

parts/00000.jsonl   beside the table (`OutputFolder`): lines of packs
notes/00000.json    says that they are all there, and how many media they name
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from packidx.errors import PackidxError
from packidx.export.energon.lines import Written, pack_line, written
from packidx.export.energon.members import read_named
from packidx.export.energon.sources import Sources
from packidx.index import Index, Sample
from packidx.io import files, urls
from packidx.io.output_folder import OutputFolder
from packidx.records.fetch import Fetcher, check_key
from packidx.run.progress import Progress
from packidx.run.workers import WorkerDied, Workers

_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other


class PackRange(NamedTuple):
    """Packs `first` … `end` - 1."""

    number: int
    first: int
    end: int


class PartWriter:
    """Writes parts of one export.

    Args:
        index: the snapshot.
        sources: the folders of its tars.
        output: where the export is built.
    """

    def __init__(self, index: Index, sources: Sources, output: OutputFolder) -> None:
        self._index, self._sources, self._output = index, sources, output
        self._with_ids = index.snapshot.lengths.transform is not None
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
            lines.append(pack_line(pack, samples, with_ids=self._with_ids))
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
    written_parts = workers.run(_write, left, writer.setup, here=lambda: writer, in_turn=True)
    try:
        for number, named in written_parts:
            num_media += named
            if progress is not None:
                progress("packs", left[number].end, parts[-1].end)
    except WorkerDied as died:
        raise died.error("wrote packs", "use fewer workers; what was written is kept") from None
    return len(parts) - len(left), num_media


def _write(part: PackRange, writer: PartWriter) -> int:
    return writer.write(part)
