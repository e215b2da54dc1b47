"""WebDataset: uncompressed tars of samples, each a run of members with one key.

A member's key is its name up to the first dot of its base name, as the `webdataset` package has it
(`base_plus_ext` in its tariterators.py); what follows the dot is its extension. A sample's record
is its ``json`` member, or its ``txt`` member as the text; its other members stand beside it. The
locator of a sample is the byte range of all its members, headers included, so that it is read
without opening the tar.

A scan reads headers and records, and passes over everything else: a corpus of images is counted
by some percent of its bytes. So the digest is of what was read (FORMAT.md), and whoever reads
records in order gets media as `Extent`s; a reader of one sample gets their bytes, by one request.

Python's `tarfile` decodes the headers. It stops without a word at a damaged one and at a missing
end, and here both are errors: samples must not vanish because a shard was cut.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from packidx.errors import BadRecord, SourceError
from packidx.io import ranges, urls
from packidx.io.ranges import Extent
from packidx.records.containers.base import (
    TASK_BYTES,
    BrokenFile,
    Container,
    Cuts,
    Edge,
    Locator,
    Record,
    RecordRange,
    ShardScan,
    attempted,
    file_version,
    named,
    read_bytes,
    too_few,
)
from packidx.records.containers.lines import decode
from packidx.records.media.held import media_in

KEY = "__key__"
"""Column of a sample's key, as in a WebDataset."""
TORN = "torn_sample"
"""Reason of a sample whose members do not lie together."""
COMPRESSED = (
    *(".tgz", ".tzst", ".txz", ".tbz2", ".tbz"),
    *(f".tar.{codec}" for codec in ("gz", "zst", "xz", "bz2", "lz4")),
)
"""Endings of tars of which no byte range can be read."""

_RECORD, _TEXT = "json", "txt"  # extensions
_ORPHAN, _CAPTION, _CHAT, _WHOLE = 1, 2, 3, 4  # media alone, text alone, a record, text and media
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_BLOCK = 512  # bytes of a header, and what content is padded to
_GLANCE = 4096  # bytes of a medium that are counted as work: most that is looked at is a header
_SCAN_BLOCK, _MOST = 1 << 14, 1 << 20  # bytes of a request to a store
_SMALL = 1 << 18  # bytes of a sample that is read through rather than jumped over
_ADVICE = "; restore the shard"


class _Hashing:
    """Digest and size of the bytes that were read."""

    def __init__(self) -> None:
        self._hasher, self.nbytes = hashlib.sha256(), 0

    def add(self, block: bytes) -> None:
        self._hasher.update(block)
        self.nbytes += len(block)

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


@dataclass(slots=True)
class Member:
    """A file in an archive, or what should have been one."""

    name: str
    """Not UTF-8 where it has surrogates, as `os.fsdecode` makes them."""
    start: int
    """First byte of its first header."""
    end: int
    """One past its content's padding."""
    data: bytes | None
    """Its content, where that was asked for."""
    offset: int
    """First byte of its content."""
    nbytes: int
    """Of its content."""
    is_file: bool
    """True if it is neither a link nor a device."""


@dataclass(slots=True)
class Sample:
    """Neighbouring members of one key."""

    key: str
    start: int
    end: int
    extensions: dict[str, Member] = field(default_factory=dict)

    @property
    def kind(self) -> int:
        """Its parts."""
        if any(media_in(f"x.{extension}") for extension in self.extensions):
            return _ORPHAN if {_RECORD, _TEXT}.isdisjoint(self.extensions) else _WHOLE
        return _CHAT if _RECORD in self.extensions else _CAPTION if _TEXT in self.extensions else 0

    @property
    def work(self) -> int:
        """Bytes that are read to count it, and not those of its media: an hour of counting is then
        thousands of parts, whatever the images weigh."""
        return sum(
            member.offset
            - member.start
            + (member.nbytes if extension == _RECORD else min(member.nbytes, _GLANCE))
            for extension, member in self.extensions.items()
        )


class Tar(Container):
    """A WebDataset shard."""

    hashes_all = False

    def media_root(self, path: str) -> str:
        """Return the tar itself: its samples refer to nothing beside it."""
        return path

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing, cuts = _Hashing(), Cuts(task_bytes)
        kinds, names, work = bytearray(), bytearray(), 0  # names: digests of base names
        first: Sample | None = None
        last: Sample | None = None
        nbytes = file_version(path)[0]
        file = Extent(path, 0, nbytes, blocks=_scanned_blocks(path, nbytes)).open()
        try:
            run = members(file, 0, nbytes, content=is_record, is_archive=True, taken=hashing.add)
            for last in samples_of(run):
                first = first or last
                cuts.at(last.start, len(kinds), work)
                work += last.work
                kinds.append(last.kind)
                name = last.key.rpartition("/")[2].encode("utf-8", "surrogateescape")
                names += hashlib.blake2b(name, digest_size=8).digest()
        except BrokenFile as error:
            behind = "no sample is whole" if last is None else f"sample {last.key!r} is whole"
            text = f"{path}: {error}; {behind}: restore the shard or write it again"
            raise SourceError(text) from None
        if first is None or last is None:
            return ShardScan(nbytes, hashing.sha256, 0, (), num_hashed=hashing.nbytes)
        torn = _torn(kinds, names)
        parts = tuple(
            replace(part, torn=tuple(n for n in torn if 0 <= n - part.first_row < part.num_records))
            for part in cuts.ranges(last.end, len(kinds), work)
        )
        edges = Edge(first.key, kinds[0] == _ORPHAN), Edge(last.key, kinds[-1] == _ORPHAN)
        return ShardScan(nbytes, hashing.sha256, len(kinds), parts, hashing.nbytes, edges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[Record]:
        start, end = record_range.start, record_range.end
        row, blocks = record_range.first_row, None
        if urls.is_url(path):
            is_dense = _MOST < end - start < _SMALL * record_range.num_records
            blocks = ranges.blocks_of(path, end, _MOST if is_dense else ranges.BLOCK)
        file = Extent(path, 0, end, blocks=blocks).open()
        with named(path, _ADVICE):
            run = members(file, start, end, content=is_record, is_archive=False)
            for sample in samples_of(run):
                at = Locator(row, sample.start, sample.end - sample.start)
                data = _lonely(sample) if row in record_range.torn else attempted(_data_of, sample)
                yield _record_of(sample, data, at, path, blocks)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_one(self, path: str, at: Locator) -> Record:
        data = read_bytes(path, at)
        with named(f"{path}, from byte {at.offset} on", _ADVICE):
            run = members(io.BytesIO(data), 0, len(data), content=None, is_archive=False)
            samples = list(samples_of(run))
        if len(samples) != 1:
            raise SourceError(
                f"{path} has {len(samples)} samples in {at.nbytes} bytes from byte {at.offset} on, "
                "where one was counted: run estimate again"
            )
        return _record_of(samples[0], _data_of(samples[0]), at)


def _scanned_blocks(path: str, nbytes: int) -> Any:
    """Return blocks of a store's shard for a scan: large ones if its first members are small."""
    if not urls.is_url(path):
        return None
    is_dense = nbytes < _MOST or ranges.read_source(path, 0, _SMALL).count(b"ustar") > 4
    return ranges.blocks_of(path, nbytes, _MOST if is_dense else _SCAN_BLOCK)


def _torn(kinds: bytearray, names: bytearray) -> list[int]:
    """Return the rows of records whose media stand elsewhere in the shard, or are missing.

    A record lacks media that stand without a record under its base name, in whatever folder. A text
    without a record lacks an image if most samples of the shard have one.
    """
    kind, name = np.frombuffer(kinds, np.uint8), np.frombuffer(names, "<u8")
    torn = (kind > _ORPHAN) & np.isin(name, name[kind == _ORPHAN])
    if np.count_nonzero(kind == _WHOLE) > np.count_nonzero(kind == _CAPTION):
        torn |= kind == _CAPTION
    return [int(row) for row in np.flatnonzero(torn)]


def members(
    file: IO[bytes],
    start: int,
    end: int,
    *,
    content: Callable[[str], bool] | None,
    is_archive: bool,
    taken: Callable[[bytes], object] | None = None,
) -> Iterator[Member]:
    """Yield the files of an archive, in order; links and devices that have a place in it, too.

    Args:
        file: can seek.
        start, end: the first byte of a header, and one past the last member or the archive.
        content: says of which, by their names, to take what is in them; None takes all.
        is_archive: the file is an archive to its end; otherwise a run of whole members.
        taken: called with all bytes of headers, and of contents that are taken, in order.

    Raises:
        BrokenFile: it is cut, or a header is none.
    """

    def read(at: int, nbytes: int) -> bytes:
        file.seek(at)
        data = file.read(nbytes)
        if taken is not None:
            taken(data)
        return data

    at = file.seek(start)
    archive: tarfile.TarFile | None = None
    while True:
        try:
            if archive is None:
                archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="replace")
            info = archive.next()
        except (tarfile.TarError, ValueError, OSError) as error:
            text = f"there is no header of a tar's member at byte {at} ({error})"
            raise BrokenFile(text) from None
        if info is None:
            break
        archive.members = []  # type: ignore[attr-defined]  # it would keep them all
        if archive.offset > end:
            raise BrokenFile(
                f"the tar is cut inside member {info.name!r}, of which {info.size} bytes and their "
                f"padding should be there from byte {info.offset_data} on"
            )
        if taken is not None:
            read(at, info.offset_data - at)
        is_file = info.isreg() and not info.issparse()
        data: bytes | None = None
        if is_file and (content is None or content(info.name)):
            data = read(info.offset_data, info.size)
        at = archive.offset
        if info.isreg() or info.islnk() or info.issym() or info.isdev():
            nbytes = info.size if is_file else 0
            yield Member(info.name, info.offset, at, data, info.offset_data, nbytes, is_file)
    if is_archive:
        size = 0
        while block := read(at + size, _MOST):
            size += len(block)
            if block.count(0) != len(block):
                text = f"there is neither a header of a tar's member at byte {at} nor its empty end"
                raise BrokenFile(f"{text}: it is damaged, or two tars are joined")
        if size < _BLOCK or size % _BLOCK:
            raise BrokenFile(f"the tar is cut: it stops at byte {at} without an empty block")
    elif at != end:
        raise BrokenFile(f"there is no header of a tar's member at byte {at}")


def samples_of(members: Iterator[Member]) -> Iterator[Sample]:
    """Yield members grouped by key; one that its sample has already begins another of that key."""
    sample: Sample | None = None
    for member in members:
        if (split := _split_name(member.name)) is None:
            continue
        key, extension = split
        if sample is None or sample.key != key or extension in sample.extensions:
            if sample is not None:
                yield sample
            sample = Sample(key, member.start, member.end)
        sample.extensions[extension] = member
        sample.end = member.end
    if sample is not None:
        yield sample


def _split_name(name: str) -> tuple[str, str] | None:
    """Key and extension of a member; None where `webdataset` passes over it, too: it has no key, or
    is about the data set."""
    parts = None if _META.match(name) else _NAME.fullmatch(name)
    return None if parts is None else (parts[1], parts[2].lower())


def is_record(name: str) -> bool:
    """Return True if a member is its sample's record, or a text beside it."""
    split = _split_name(name)
    return split is not None and split[1] in (_RECORD, _TEXT)


def _record_of(
    sample: Sample,
    data: dict[str, Any] | BadRecord,
    at: Locator,
    path: str = "",
    blocks: Any = None,
) -> Record:
    """A sample as a record; its media are `Extent`s of `path` unless they were read."""
    files: dict[str, bytes | Extent] = {}
    for extension, file in sample.extensions.items():
        if file.data is None:
            files[file.name] = Extent(path, file.offset, file.nbytes, file.name, blocks)
        elif extension not in (_RECORD, _TEXT):
            files[file.name] = file.data
    return Record(data, at, sample.key, files)


def _data_of(sample: Sample) -> dict[str, Any]:
    """Return the record of a sample.

    Raises:
        BadRecord: it has none, or one that cannot be decoded, or a member is not a file.
    """
    if wrong := next((file for file in sample.extensions.values() if not file.is_file), None):
        text = "is a link, a device or a sparse file: write the file itself into the tar"
        raise BadRecord("bad_member", f"member {wrong.name!r} {text}")
    member, text_file = map(sample.extensions.get, (_RECORD, _TEXT))
    if member is None and text_file is None:
        has = ", ".join(sample.extensions)[:200]
        text = f"has no json or txt member, only {has}: a record is one of these"
        raise BadRecord("bad_record", f"sample {sample.key!r} {text}")
    record: dict[str, Any] = {}
    if member is not None:
        try:
            record = decode(member.data or b"")
        except BadRecord as error:
            where = f"(member {member.name!r} of the shard)"
            raise BadRecord(error.reason, f"{error.detail} {where}") from None
    if text_file is not None:
        try:
            record = {_TEXT: (text_file.data or b"").decode(), **record}
        except UnicodeDecodeError:
            detail = f"member {text_file.name!r} is not UTF-8: write it anew"
            raise BadRecord("bad_utf8", detail) from None
    if record.get("id") in (None, ""):
        record["id"] = sample.key
    return {**record, KEY: sample.key}


def _lonely(sample: Sample) -> BadRecord:
    names = ", ".join(member.name for member in sample.extensions.values())
    return BadRecord(
        TORN,
        f"sample {sample.key!r} has only {names[:200]}: other members are elsewhere in the shard, "
        "in another one, or missing; write the members of a sample side by side",
    )
