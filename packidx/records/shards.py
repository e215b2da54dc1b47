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
from packidx.io.storage import raise_unreadable
from packidx.records.containers.base import TASK_BYTES, ShardScan, file_version
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.containers.registry import get_container

if TYPE_CHECKING:
    from packidx.run.workers import Progress


def scan_shard(path: str, kind: str = JSONL, layout: Layout = DEFAULT) -> ShardScan:
    """Hash a shard, count its records and find where tasks may start, in one pass."""
    return get_container(kind, layout.delimiter).scan(path, TASK_BYTES)


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of records, as it was found; `scan_shards` makes a `Shard` of it."""

    uri: str
    """Path or URL as given."""
    path: str
    """Path on this machine, or the URL."""
    source: str
    """Name of the source it belongs to."""
    container: str = JSONL
    """The kind of file."""
    layout: Layout = DEFAULT
    """The layout of its source."""


_Scanned = tuple[Shard, tuple[tuple[str, bool], ...]]
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
    total = sum(file_version(file.path)[0] for file in files)
    done = 0
    scans = list[_Scanned]()
    threads = storage.THREADS if any(urls.is_url(file.path) for file in files) else workers
    with ThreadPoolExecutor(min(threads, len(files), storage.THREADS)) as pool:
        for each in pool.map(lambda file: _scan_file(file, known(file)), files):
            scans.append(each)
            done += each[0].bytes
            progress("scan", done, total)
    for at, (file, following) in enumerate(itertools.pairwise(files)):
        if os.path.dirname(file.path) != os.path.dirname(following.path):
            continue
        for one, other in ((at, at + 1), (at + 1, at)):
            if scans[one][1] and not scans[other][1] and scans[other][0].ranges:
                scans[other] = _scan_file(files[other])  # its neighbour may have been cut since
        (left, edges), (right, others) = scans[at], scans[at + 1]
        if edges and others and edges[-1][0] == others[0][0] and (edges[-1][1] or others[0][1]):
            scans[at] = _with_torn(left, -1, left.rows - 1), edges
            scans[at + 1] = _with_torn(right, 0, 0), others
    return [shard for shard, _ in scans]


def _with_torn(shard: Shard, number: int, row: int) -> Shard:
    """Mark the first or last record of a shard, which its end cuts, as torn."""
    ranges = [*shard.ranges]
    ranges[number] = replace(ranges[number], torn=tuple(sorted({*ranges[number].torn, row})))
    return replace(shard, ranges=tuple(ranges))


def check_unchanged(path: str, shard: Shard) -> None:
    """Raise a SourceError if a file was written to, replaced or removed while it was counted."""
    with raise_unreadable(path):
        now = storage.stat(path)
    if (now.nbytes, now.version) != (shard.bytes, shard.version):
        sizes = f"{shard.bytes} bytes before and {now.nbytes} now"
        raise SourceError(f"{path} changed while it was counted ({sizes}); start again")


def _scan_file(file: InputFile, known: Shard | None = None) -> _Scanned:
    if known is not None:
        return known, ()
    nbytes, version = file_version(file.path)  # before, so that a change while it is read is seen
    found = scan_shard(file.path, file.container, file.layout)
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
    """Return each path's shortest suffix, in whole components, that no other path ends with."""
    wholes = [urls.to_absolute(path).split(os.sep) for path in paths]
    suffixes = [["/".join(whole[at:]) for at in reversed(range(len(whole)))] for whole in wholes]
    count = collections.Counter(itertools.chain.from_iterable(suffixes))
    return [next((name for name in own if count[name] == 1), own[-1]) for own in suffixes]
