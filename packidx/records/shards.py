"""Shards: what one pass over a file finds out, and where tasks may start.

Of a shard in an object store, a range is read where records have ranges: one record, or of a tar
its headers. Any other shard is copied to the local cache first, once, and read there.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from packidx.errors import SourceError
from packidx.format.manifest import DEFAULT, Layout, Shard
from packidx.io import storage, urls
from packidx.io.storage import reading
from packidx.records.containers.base import (
    TASK_BYTES,
    Edge,
    RecordRange,
    ShardScan,
    file_version,
)
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.containers.registry import container

if TYPE_CHECKING:
    from packidx.run.workers import Progress


def scan(path: str, kind: str = JSONL, layout: Layout = DEFAULT) -> ShardScan:
    """Hash a shard, count its records and find where tasks may start, in one pass.

    Raises:
        SourceError: the file cannot be read, or is broken so that its records cannot be counted.
    """
    return container(kind, layout.delimiter).scan(path, TASK_BYTES)


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of records, as it was found; `scan_shards` makes a `Shard` of it."""

    uri: str
    """As given."""
    path: str
    """Where it is on this machine, or its URL."""
    source: str
    """Name of the source it belongs to."""
    container: str = JSONL
    """What kind of file it is."""
    layout: Layout = DEFAULT
    """How its source names things."""


class ScannedShard(NamedTuple):
    """A shard, and where tasks may start in it."""

    shard: Shard
    """As the manifest has it, but for its columns."""
    ranges: tuple[RecordRange, ...]
    edges: tuple[Edge, Edge] | None = None
    """As of `ShardScan`, if it was scanned now."""


def scan_shards(
    files: Sequence[InputFile],
    workers: int,
    progress: Progress,
    known: Callable[[InputFile], ScannedShard | None] | None = None,
) -> list[ScannedShard]:
    """Scan all shards, by threads: hashing releases the interpreter, and so does a store's answer.

    Args:
        known: returns the shard of a file that need not be read again; None of any other.
    """

    known = known or (lambda _: None)
    total = sum(file_version(file.path)[0] for file in files)
    done = 0
    scans = []
    threads = storage.THREADS if any(urls.is_url(file.path) for file in files) else workers
    with ThreadPoolExecutor(min(threads, len(files), storage.THREADS)) as pool:
        for scanned in pool.map(lambda file: known(file) or _scanned(file), files):
            scans.append(scanned)
            done += scanned.shard.bytes
            progress("scan", done, total)
    for at in range(1, len(scans)):
        if os.path.dirname(files[at - 1].path) == os.path.dirname(files[at].path):
            for one, other in ((at - 1, at), (at, at - 1)):
                if scans[one].edges and not scans[other].edges and scans[other].ranges:
                    scans[other] = _scanned(files[other])  # its neighbour may have been cut since
            scans[at - 1 : at + 1] = _marked(scans[at - 1], scans[at])
    return scans


def _marked(one: ScannedShard, other: ScannedShard) -> tuple[ScannedShard, ScannedShard]:
    """Mark the record of two shards in a row that is cut by the end of the first as torn."""
    if one.edges is None or other.edges is None:
        return one, other
    last, first = one.edges[1], other.edges[0]
    if last.key != first.key or not (last.is_orphan or first.is_orphan):
        return one, other
    end, begin = one.ranges[-1], other.ranges[0]
    end = replace(end, torn=(*end.torn, end.first_row + end.num_records - 1))
    begin = replace(begin, torn=(0, *begin.torn))
    return (
        one._replace(ranges=(*one.ranges[:-1], end)),
        other._replace(ranges=(begin, *other.ranges[1:])),
    )


def check_unchanged(path: str, shard: Shard) -> None:
    """Raise a SourceError if a file was written to, replaced or removed while it was counted."""
    with reading(path):
        now = storage.stat(path)
    if (now.nbytes, now.version) != (shard.bytes, shard.version):
        raise SourceError(
            f"{path} changed while it was counted ({shard.bytes} bytes before and {now.nbytes} "
            "now); start again"
        )


def _scanned(file: InputFile) -> ScannedShard:
    nbytes, version = file_version(file.path)  # before, so that a change while it is read is seen
    found = scan(file.path, file.container, file.layout)
    shard = Shard(
        uri=file.uri,
        bytes=nbytes,
        rows=found.num_records,
        fingerprint=found.sha256,
        source=file.source,
        container=file.container,  # type: ignore[arg-type]  # a kind of the registry's
        version=version,
        ranges=tuple(map(stored_range, found.ranges)),
    )
    return ScannedShard(shard, found.ranges, found.edges)


def stored_range(part: RecordRange) -> tuple[int, ...]:
    """Return a range as a manifest has it."""
    numbers = part.start, part.end, part.first_row, part.num_records
    return numbers if part.weight is None else (*numbers, part.weight)


def ranges_of(shard: Shard) -> tuple[RecordRange, ...]:
    """Return where tasks may start in a shard of a manifest."""
    return tuple(
        RecordRange(start, end, first_row, num_records, weight[0] if weight else None)
        for start, end, first_row, num_records, *weight in shard.ranges or ()
    )


def short_names(paths: Sequence[str]) -> list[str]:
    """For each path its shortest suffix, in whole components, that no other path ends with."""
    wholes = [urls.absolute(path).split(os.sep) for path in paths]
    suffixes = [["/".join(whole[at:]) for at in reversed(range(len(whole)))] for whole in wholes]
    count = collections.Counter(itertools.chain.from_iterable(suffixes))
    return [next((name for name in own if count[name] == 1), own[-1]) for own in suffixes]
