"""Runs of packs written as lines, in any number of processes; what is finished is not done again.

<staging>/parts/00000.jsonl    lines of packs
<staging>/notes/00000.json     says that they are all there, and how many media they name
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, NamedTuple

from packidx.errors import PackidxError, SourceError
from packidx.export.energon.lines import Written, pack_line, written
from packidx.export.energon.members import read_named
from packidx.export.energon.sources import Sources
from packidx.index import Index, Sample
from packidx.io import files, urls
from packidx.io.output_folder import Place
from packidx.records.fetch import Fetcher
from packidx.records.keys import check_key
from packidx.run.local import follow_parent

_REQUESTS = 16  # at a time, to an object store; a disk is asked one after the other

Progress = Callable[[int, int], None]


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
        transform: what the manifest says of the lengths' transform.
    """

    def __init__(
        self, index: Index, sources: Sources, place: Place, transform: dict[str, Any] | None
    ) -> None:
        self._index, self._sources, self._place = index, sources, place
        self._with_ids = transform is not None
        self._fetcher = Fetcher(index)
        self._threads: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._index, self._sources.shards, self._place, self._with_ids)

    def is_done(self, part: Part) -> bool:
        """Whether an earlier run has finished it."""
        return os.path.exists(self._note(part))

    def read(self, part: Part) -> bytes:
        """A finished part's lines."""
        with open(self._path(part), "rb") as file:
            return file.read()

    def write(self, part: Part) -> int:
        """Write a part, unless it is there; how many media it names.

        Raises:
            PackidxError: a sample cannot be exported.
        """
        if self.is_done(part):
            with open(self._note(part), "rb") as file:
                return int(json.load(file)["num_media"])
        lines, num_media = [], 0
        for number in range(part.first, part.end):
            pack = self._index.pack(number)
            samples = list(self._all_written(pack.samples))
            lines.append(pack_line(pack, samples, with_ids=self._with_ids))
            num_media += sum(len(one.media) for one in samples)
        os.makedirs(os.path.dirname(self._path(part)), exist_ok=True)
        files.write_atomic(self._path(part), b"".join(lines))
        files.write_json(self._note(part), {"num_media": num_media})
        return num_media

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


def _restored(index: Index, shards: Sequence[str], place: Place, with_ids: bool) -> PartWriter:
    return PartWriter(index, Sources(shards), place, {} if with_ids else None)


def write_parts(
    writer: PartWriter, parts: Sequence[Part], workers: int, progress: Progress | None
) -> int:
    """Write all parts; how many media they name.

    Raises:
        SourceError: a worker process died.
        PackidxError: a sample cannot be exported.
    """
    num_media = 0
    with contextlib.ExitStack() as stack:
        waiting = [part for part in parts if not writer.is_done(part)]
        results: Iterator[int] = map(writer.write, parts)
        if min(workers, len(waiting)) > 1:
            results = stack.enter_context(_pool(writer, parts, workers))
        for part, named in zip(parts, results, strict=True):
            num_media += named
            if progress is not None:
                progress(part.end, parts[-1].end)
    return num_media


@contextlib.contextmanager
def _pool(writer: PartWriter, parts: Sequence[Part], workers: int) -> Iterator[Iterator[int]]:
    """What each part gives, in order, as it is written by other processes."""
    executor = ProcessPoolExecutor(
        min(workers, len(parts)), get_context("spawn"), _start_worker, (writer,)
    )
    try:
        yield _checked(executor.map(_write_in_worker, parts))
    finally:
        executor.shutdown(cancel_futures=True)


def _checked(results: Iterator[int]) -> Iterator[int]:
    try:
        yield from results
    except BrokenProcessPool:
        raise SourceError(
            "a worker process died, most often for want of memory: use fewer workers; what was "
            "written is kept (in a script of your own, call this under "
            "`if __name__ == '__main__':`)"
        ) from None


_writer: PartWriter | None = None  # of a worker process


def _start_worker(writer: PartWriter) -> None:
    global _writer
    follow_parent()
    _writer = writer


def _write_in_worker(part: Part) -> int:
    assert _writer is not None
    return _writer.write(part)
