"""WebDataset: uncompressed tars of samples, each a run of members with one key.

A member's key is its name up to the first dot of its base name, as the `webdataset` package has it
(`base_plus_ext` in its tariterators.py); what follows the dot is its extension. A sample's record
is its ``json`` member; its other members wait under `MEMBERS` until the record has the standard
names (`dialects.webdataset`). The locator of a sample is the byte range of all its members, headers
included, so that it is read without opening the tar.

A scan reads headers and records, and passes over everything else: a corpus of images is counted
by some percent of its bytes. So the digest is of what was read (FORMAT.md), and whoever reads
records in order gets media as `Extent`s; a reader of one sample gets their bytes, by one request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.errors import SourceError
from packidx.io.ranges import Extent, ReadAhead
from packidx.records.containers.base import (
    TASK_BYTES,
    BrokenFile,
    RawRecord,
    RecordRange,
    ShardScan,
    attempted,
    named,
    too_few,
)
from packidx.records.containers.blocks import Hashing, Stream, file_version, read_bytes
from packidx.records.containers.tar.samples import (
    RECORD,
    Sample,
    duplicate,
    is_record,
    is_text,
    record_of,
    samples_of,
)
from packidx.records.containers.tar.stream import SkippingStream, members

TAR = "tar"
"""The kind of container."""

COMPRESSED = {
    **dict.fromkeys((".tgz", ".tar.gz"), "gunzip"),
    **dict.fromkeys((".tzst", ".tar.zst"), "unzstd"),
    **dict.fromkeys((".txz", ".tar.xz"), "unxz"),
    **dict.fromkeys((".tbz2", ".tar.bz2"), "bunzip2"),
    ".tar.lz4": "unlz4",
}
"""Endings of tars of which no byte range can be read, and what unpacks them."""
_GLANCE = 4096  # bytes of a medium that are counted as work: most that is looked at is a header
_SCAN_BLOCK = 1 << 14
_ADVICE = "; restore the shard"


@dataclass(frozen=True, slots=True)
class TarRange(RecordRange):
    """A run of samples of a tar."""

    repeated: tuple[int, ...] = ()
    """Rows in it whose key an earlier sample of the shard has: only the scan sees them all."""


class Tar:
    """A WebDataset shard."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing, keys, cuts = Hashing(), _Keys(), _Cuts(task_bytes)
        nbytes = file_version(path)[0]
        stream = SkippingStream(ReadAhead(path, nbytes, _SCAN_BLOCK), 0, hashing.add)
        last: Sample | None = None
        try:
            for last in samples_of(members(stream, content=is_record, is_archive=True)):
                cuts.add(last)
                keys.add(last.key)
        except BrokenFile as error:
            raise _broken(path, error, last) from None
        ranges = cuts.finish(keys.repeated())
        return ShardScan(nbytes, hashing.sha256, cuts.number, ranges, num_hashed=hashing.nbytes)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        repeated = frozenset(record_range.repeated if isinstance(record_range, TarRange) else ())
        read_ahead = ReadAhead(path, record_range.end)
        row = record_range.first_row
        tar_members = members(
            SkippingStream(read_ahead, record_range.start), content=is_record, is_archive=False
        )
        with named(path, _ADVICE):
            for sample in samples_of(tar_members):
                for member in sample.extensions.values():
                    if member.data is None:
                        member.data = Extent(read_ahead, member.offset, member.nbytes)
                record = duplicate(sample) if row in repeated else attempted(record_of, sample)
                key = sample.key if is_text(sample.key) else None
                yield RawRecord(row, sample.start, sample.end - sample.start, record, key)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        if offset is None or nbytes is None:
            raise SourceError(f"record {row} of {path} has no byte range: run estimate again")
        stream = Stream(iter((read_bytes(path, offset, nbytes),)), offset)
        with named(path, _ADVICE):
            samples = list(samples_of(members(stream, content=True, is_archive=False)))
        if len(samples) != 1:
            raise SourceError(
                f"{path} has {len(samples)} samples at bytes {offset} to {offset + nbytes}, where "
                "one was counted: run estimate again"
            )
        return record_of(samples[0], f" ({path}, offset {offset})")


def refuse_compressed(uri: str) -> None:
    """Raise a SourceError if `uri` is the name of a compressed tar."""
    tool = next((tool for ending, tool in COMPRESSED.items() if uri.endswith(ending)), None)
    if tool is not None:
        raise SourceError(
            f"{uri} is a compressed tar, which has no byte ranges: to read one sample, all before "
            f"it would have to be unpacked; {tool} it and name the plain .tar"
        )


def _broken(path: str, error: BrokenFile, last: Sample | None) -> SourceError:
    behind = "no sample is whole" if last is None else f"the last whole sample is {last.key!r}"
    return SourceError(f"{path}: {error}; {behind}: restore the shard or write it again")


class _Cuts:
    """Ranges of a tar, cut by the bytes that are read of it and not by those of its media: an hour
    of counting is then thousands of parts, whatever the images weigh."""

    def __init__(self, task_bytes: int) -> None:
        self.number = 0
        """Samples so far."""
        self._task_bytes = task_bytes
        self._done: list[tuple[int, int, int, int, int]] = []
        self._start = self._first = self._weight = self._end = 0

    def add(self, sample: Sample) -> None:
        """The next sample."""
        if self._weight >= self._task_bytes:
            self._close()
        if self.number == self._first:
            self._start = sample.start
        for extension, member in sample.extensions.items():
            read = member.nbytes if extension == RECORD else min(member.nbytes, _GLANCE)
            self._weight += member.offset - member.start + read
        self._end = sample.end
        self.number += 1

    def _close(self) -> None:
        count = self.number - self._first
        if count:
            self._done.append((self._start, self._end, self._first, count, self._weight))
        self._first, self._weight = self.number, 0

    def finish(self, repeated: list[int]) -> tuple[TarRange, ...]:
        """All ranges; `repeated` are the rows whose keys come again."""
        self._close()
        return tuple(
            TarRange(*cut, tuple(row for row in repeated if cut[2] <= row < cut[2] + cut[3]))
            for cut in self._done
        )


class _Keys:
    """Which keys come again, for 16 bytes a key: digests, since keys may be long."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, key: str) -> None:
        data = key.encode("utf-8", "surrogateescape")
        self._digests += hashlib.blake2b(data, digest_size=16).digest()

    def repeated(self) -> list[int]:
        """Numbers of the keys that were added before, ascending."""
        halves = np.frombuffer(self._digests, "<u8")[::2]
        ordered = np.sort(halves)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return []
        seen: set[bytes] = set()
        numbers: list[int] = []
        for number in np.flatnonzero(np.isin(halves, twice)).tolist():
            digest = bytes(self._digests[number * 16 : number * 16 + 16])
            if digest in seen:
                numbers.append(number)
            seen.add(digest)
        return numbers
