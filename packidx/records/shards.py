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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from packidx.errors import SourceError
from packidx.format.manifest import DEFAULT, Layout, Shard
from packidx.io import storage, urls
from packidx.io.storage import reading
from packidx.records.containers.base import (
    TASK_BYTES,
    Edge,
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


_Scanned = tuple[Shard, tuple[Edge, Edge] | None]
"""A shard, and the edges of `ShardScan` if it was scanned now."""


def scan_shards(
    files: Sequence[InputFile],
    workers: int,
    progress: Progress,
    known: Callable[[InputFile], Shard | None] = lambda file: None,
) -> list[Shard]:
    """Scan all shards, by threads: hashing releases the interpreter, and so does a store's answer.

    Args:
        known: returns the shard of a file that need not be read again; None of any other.
    """

    def scanned(file: InputFile) -> _Scanned:
        shard = known(file)
        return _scanned(file) if shard is None else (shard, None)

    total = sum(file_version(file.path)[0] for file in files)
    done = 0
    scans = list[_Scanned]()
    threads = storage.THREADS if any(urls.is_url(file.path) for file in files) else workers
    with ThreadPoolExecutor(min(threads, len(files), storage.THREADS)) as pool:
        for each in pool.map(scanned, files):
            scans.append(each)
            done += each[0].bytes
            progress("scan", done, total)
    for at in range(1, len(scans)):
        if os.path.dirname(files[at - 1].path) == os.path.dirname(files[at].path):
            for one, other in ((at - 1, at), (at, at - 1)):
                if scans[one][1] and not scans[other][1] and scans[other][0].ranges:
                    scans[other] = _scanned(files[other])  # its neighbour may have been cut since
            scans[at - 1 : at + 1] = _marked(scans[at - 1], scans[at])
    return [shard for shard, _ in scans]


def _marked(one: _Scanned, other: _Scanned) -> tuple[_Scanned, _Scanned]:
    """Mark the record of two shards in a row that is cut by the end of the first as torn."""
    if one[1] is None or other[1] is None:
        return one, other
    last, first = one[1][1], other[1][0]
    if last.key != first.key or not (last.is_orphan or first.is_orphan):
        return one, other
    (*before, end), (begin, *behind) = one[0].ranges, other[0].ranges
    end = replace(end, torn=(*end.torn, end.first_row + end.num_records - 1))
    begin = replace(begin, torn=(0, *begin.torn))
    return (
        (replace(one[0], ranges=(*before, end)), one[1]),
        (replace(other[0], ranges=(begin, *behind)), other[1]),
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


def _scanned(file: InputFile) -> _Scanned:
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
        ranges=found.ranges,
    )
    return shard, found.edges


def short_names(paths: Sequence[str]) -> list[str]:
    """For each path its shortest suffix, in whole components, that no other path ends with."""
    wholes = [urls.absolute(path).split(os.sep) for path in paths]
    suffixes = [["/".join(whole[at:]) for at in reversed(range(len(whole)))] for whole in wholes]
    count = collections.Counter(itertools.chain.from_iterable(suffixes))
    return [next((name for name in own if count[name] == 1), own[-1]) for own in suffixes]
