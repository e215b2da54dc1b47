"""Runs of packs written as lines, in any number of processes; what is finished is not done again.

<staging>/parts/00000.jsonl    lines of packs
<staging>/notes/00000.json     says that they are all there, and how many media they name
"""

from __future__ import annotations

import functools
import json
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
from packidx.io.output_folder import Place
from packidx.records.fetch import Fetcher
from packidx.records.keys import check_key
from packidx.run.progress import Progress
from packidx.run.workers import WorkerDied, Workers

_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other


class Part(NamedTuple):
    """Packs `first` … `end` - 1."""

    number: int
    first: int
    end: int


class PartWriter:
    """Writes parts of one export.

    Args:
        index: the snapshot.
        sources: the folders of its tars.
        place: where the export is built.
        with_ids: lines have the numbers of samples, which a transform needs.
    """

    def __init__(self, index: Index, sources: Sources, place: Place, with_ids: bool) -> None:
        self._index, self._sources, self._place = index, sources, place
        self._with_ids = with_ids
        self._fetcher = Fetcher(index)
        self._threads: ThreadPoolExecutor | None = None

    @property
    def setup(self) -> Callable[[], PartWriter]:
        """What makes the same in another process."""
        given = self._index, self._sources.shards, self._place, self._with_ids
        return functools.partial(_part_writer, *given)

    def is_done(self, part: Part) -> bool:
        """Whether an earlier run has finished it."""
        return os.path.exists(self._note(part))

    def read(self, part: Part) -> bytes:
        """A finished part's lines."""
        with open(self._path(part), "rb") as file:
            return file.read()

    def num_media(self, part: Part) -> int:
        """How many media a finished part names."""
        with open(self._note(part), "rb") as file:
            return int(json.load(file)["num_media"])

    def write(self, part: Part) -> None:
        """Write a part and its note.

        Raises:
            PackidxError: a sample cannot be exported.
        """
        lines, num_media = [], 0
        for number in range(part.first, part.end):
            pack = self._index.pack(number)
            samples = list(self._all_written(pack.samples))
            lines.append(pack_line(pack, samples, with_ids=self._with_ids))
            num_media += sum(len(sample.media) for sample in samples)
        os.makedirs(os.path.dirname(self._path(part)), exist_ok=True)
        files.write_atomic(self._path(part), b"".join(lines))
        files.write_json(self._note(part), {"num_media": num_media})

    def _all_written(self, samples: Sequence[Sample]) -> Iterator[Written]:
        shards = self._index.manifest["shards"]
        if not any(
            urls.is_url(self._index.resolve(shards[one.shard]["uri"]))
            for one in samples
            if one.shard is not None
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
        found = read_named(path, sample.offset, sample.nbytes, layout)
        check_key(path, sample, found.key)
        line = written(found, path, self._sources.name_of(path))
        self._sources.check(path, found, line.media)
        return line

    def _path(self, part: Part) -> str:
        folder = os.path.join(os.path.dirname(self._place.table), "parts")
        return os.path.join(folder, f"{part.number:05d}.jsonl")

    def _note(self, part: Part) -> str:
        return os.path.join(self._place.notes, f"{part.number:05d}.json")


def _part_writer(index: Index, shards: Sequence[str], place: Place, with_ids: bool) -> PartWriter:
    return PartWriter(index, Sources(shards), place, with_ids)


def write_parts(
    writer: PartWriter, parts: Sequence[Part], workers: Workers, progress: Progress | None
) -> int:
    """Write all parts that are not there; how many media they all name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    left = [part for part in parts if not writer.is_done(part)]
    written_parts = workers.run(_write, left, writer.setup, here=lambda: writer, in_turn=True)
    try:
        for number, _ in written_parts:
            if progress is not None:
                progress("packs", left[number].end, parts[-1].end)
    except WorkerDied as died:
        raise died.error("wrote packs", "use fewer workers; what was written is kept") from None
    return sum(map(writer.num_media, parts))


def _write(part: Part, writer: PartWriter) -> None:
    writer.write(part)
