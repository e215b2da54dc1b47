"""WebDataset: uncompressed tars of samples, each a run of members with one key.

A member's key is its name up to the first dot of its base name, as the `webdataset` package has it
(`base_plus_ext` in its tariterators.py); what follows the dot is its extension. A sample's record
is its ``json`` member; its other members wait under `MEMBERS` until the record has the standard
names (`dialects.standard`). The locator of a sample is the byte range of all its members, headers
included, so that it is read without opening the tar.

A scan reads headers and records, and passes over everything else: a corpus of images is counted
by some percent of its bytes. So the digest is of what was read (FORMAT.md), and whoever reads
records in order gets media as `Extent`s; a reader of one sample gets their bytes, by one request.

Python's `tarfile` decodes the headers. It stops without a word at a damaged one and at a missing
end, and here both are errors: samples must not vanish because a shard was cut.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any, NamedTuple

import numpy as np

from packidx.errors import BadRecord, SourceError
from packidx.io import ranges, urls
from packidx.io.ranges import Extent
from packidx.records.containers.base import (
    MAX_RECORD,
    SMALLER,
    TASK_BYTES,
    BrokenFile,
    Container,
    Cuts,
    Hashing,
    RawRecord,
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

TAR = "tar"
"""The kind of container."""
MEMBERS = "__members__"
"""Where a record has its sample's files, as `Members`, until `dialects.standard` places them."""
KEY = "__key__"
"""Where a record has its sample's key, as in a WebDataset."""
APART = "missing_media"
"""Reason of a sample whose media are elsewhere."""
COMPRESSED = (
    *(".tgz", ".tzst", ".txz", ".tbz2", ".tbz"),
    *(f".tar.{codec}" for codec in ("gz", "zst", "xz", "bz2", "lz4")),
)
"""Endings of tars of which no byte range can be read."""

_RECORD, _TEXT = "json", "txt"  # extensions
_CHAT, _CAPTION, _MEDIA, _WHOLE = 1, 2, 3, 4
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_BLOCK = 512  # bytes of a header, and what content is padded to
_MAX_HEADER = 1 << 20  # bytes of an extended header; names and times
_GLANCE = 4096  # bytes of a medium that are counted as work: most that is looked at is a header
_SCAN_BLOCK, _MOST = 1 << 14, 1 << 20  # bytes of a request to a store
_SMALL = 1 << 18  # bytes of a sample that is read through rather than jumped over
_ADVICE = "; restore the shard"


class Members(NamedTuple):
    """The files of a sample."""

    key: str
    files: dict[str, bytes | Extent]
    """Name in the tar → content, in the order of the tar."""


@dataclass(slots=True)
class Member:
    """A file in an archive, or what should have been one."""

    name: str
    """Not UTF-8 where it has surrogates, as `os.fsdecode` makes them."""
    start: int
    """First byte of its first header."""
    end: int
    """One past its content's padding."""
    data: bytes | Extent | None
    """Its content, where that was asked for."""
    offset: int
    """First byte of its content."""
    nbytes: int
    """Of its content."""
    wrong: BadRecord | None
    """Why there is no content to be had of it."""


@dataclass(slots=True)
class Sample:
    """Neighbouring members of one key."""

    key: str
    start: int
    end: int
    extensions: dict[str, Member] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TarRange(RecordRange):
    """A run of samples of a tar, with facts that only a scan of the shard can know."""

    apart: tuple[int, ...] = ()
    """Rows in it whose media are elsewhere: in another sample of the shard, or in the next one."""
    ends: tuple[tuple[str, int], ...] = ()
    """Key and `_contents` of the shard's first and last sample."""


Ranges = tuple[RecordRange, ...]


class Tar(Container):
    """A WebDataset shard."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing, cuts = Hashing(), Cuts(task_bytes)
        contents, bases, work = bytearray(), bytearray(), 0  # digests of base names
        ends: tuple[tuple[str, int], ...] = ()
        nbytes = file_version(path)[0]
        file = Extent(path, 0, nbytes, blocks=_scanned_blocks(path, nbytes)).open()
        archive = members(file, 0, nbytes, content=is_record, is_archive=True, taken=hashing.add)
        last: Sample | None = None
        try:
            for last in samples_of(archive):
                cuts.at(last.start, len(contents), work)
                work += _work(last)
                contents.append(_contents(tuple(last.extensions)))
                ends = (*ends[:1], (last.key, contents[-1]))
                base = last.key.rpartition("/")[2].encode("utf-8", "surrogateescape")
                bases += hashlib.blake2b(base, digest_size=8).digest()
        except BrokenFile as error:
            behind = "no sample is whole" if last is None else f"sample {last.key!r} is whole"
            text = f"{path}: {error}; {behind}: restore the shard or write it again"
            raise SourceError(text) from None
        number, apart = len(contents), _apart(contents, bases)
        ranges = tuple(
            TarRange(
                *(part.start, part.end, part.first_row, part.num_records, part.weight),
                apart=tuple(n for n in apart if 0 <= n - part.first_row < part.num_records),
                ends=ends,
            )
            for part in cuts.ranges(0 if last is None else last.end, number, work)
        )
        return ShardScan(nbytes, hashing.sha256, number, ranges, num_hashed=hashing.nbytes)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        apart = record_range.apart if isinstance(record_range, TarRange) else ()
        start, end = record_range.start, record_range.end
        row, blocks = record_range.first_row, None
        if urls.is_url(path):
            is_dense = _MOST < end - start < _SMALL * record_range.num_records
            blocks = ranges.blocks_of(path, end, _MOST if is_dense else ranges.BLOCK)
        file = Extent(path, 0, end, blocks=blocks).open()
        with named(path, _ADVICE):
            run = members(file, start, end, content=is_record, is_archive=False)
            for sample in samples_of(run):
                for member in sample.extensions.values():
                    if member.data is None:
                        place = member.offset, member.nbytes
                        member.data = Extent(path, *place, member.name, blocks)
                record = _lonely(sample) if row in apart else attempted(record_of, sample)
                key = sample.key if _is_text(sample.key) else None
                yield RawRecord(row, sample.start, sample.end - sample.start, record, key)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        data = read_bytes(path, row, offset, nbytes)
        with named(f"{path}, from byte {offset} on", _ADVICE):
            run = members(io.BytesIO(data), 0, len(data), content=None, is_archive=False)
            samples = list(samples_of(run))
        if len(samples) != 1:
            raise SourceError(
                f"{path} has {len(samples)} samples in {nbytes} bytes from byte {offset} on, where "
                "one was counted: run estimate again"
            )
        return record_of(samples[0])


def _work(sample: Sample) -> int:
    """Return the bytes of a sample that are read to count it, and not those of its media: an hour
    of counting is then thousands of parts, whatever the images weigh."""
    return sum(
        member.offset
        - member.start
        + (member.nbytes if extension == _RECORD else min(member.nbytes, _GLANCE))
        for extension, member in sample.extensions.items()
    )


def _scanned_blocks(path: str, nbytes: int) -> Any:
    """Return blocks of a store's shard for a scan: large ones if its first members are small."""
    if not urls.is_url(path):
        return None
    is_dense = nbytes < _MOST or ranges.read_source(path, 0, _SMALL).count(b"ustar") > 4
    return ranges.blocks_of(path, nbytes, _MOST if is_dense else _SCAN_BLOCK)


def refuse_compressed(uri: str) -> None:
    """Raise a SourceError if `uri` is the name of a compressed tar."""
    if uri.endswith(COMPRESSED):
        raise SourceError(
            f"{uri} is a compressed tar, which has no byte ranges: to read one sample, all before "
            "it would have to be unpacked; unpack it and name the plain .tar"
        )


# -- members ---------------------------------------------------------------------------------------


class _Headers:
    """A file of which `tarfile` reads headers: none is larger than `_MAX_HEADER`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, nbytes: int) -> bytes:
        if nbytes > _MAX_HEADER:
            raise BrokenFile(f"it has an extended header of {nbytes:,} bytes")
        return self._file.read(nbytes)


def members(
    file: IO[bytes],
    start: int,
    end: int,
    *,
    content: Callable[[str], bool] | None,
    is_archive: bool,
    taken: Callable[[bytes], object] | None = None,
) -> Iterator[Member]:
    """The files of an archive, in order; links and devices that have a place in it, too.

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
        return file.read(nbytes)

    at = file.seek(start)
    archive: tarfile.TarFile | None = None
    while True:
        try:
            if archive is None:
                archive = tarfile.TarFile(
                    fileobj=_Headers(file),  # type: ignore[arg-type]
                    encoding="utf-8",
                    errors="surrogateescape",
                )
            info = archive.next()
        except (tarfile.TarError, ValueError, OSError) as error:
            text = f"there is no header of a tar's member at byte {at} ({error})"
            raise BrokenFile(text) from None
        if info is None:
            break
        archive.members = []  # type: ignore[attr-defined]  # it would keep them all
        if any(name in ("path", "size") or "sparse" in name for name in archive.pax_headers):
            raise BrokenFile(f"a global header before byte {info.offset_data} names a member")
        if archive.offset > end:
            raise BrokenFile(
                f"the tar is cut inside member {info.name!r}, of which {info.size} bytes and their "
                f"padding should be there from byte {info.offset_data} on"
            )
        if taken is not None:
            taken(read(at, info.offset_data - at))
        wants = info.isreg() and (content is None or content(info.name))
        wrong: BadRecord | None = None
        data: bytes | None = None
        if info.issparse():
            raise BrokenFile(f"member {info.name!r} is a sparse file: write it without --sparse")
        if wants and content is not None and info.size > MAX_RECORD:
            raise BrokenFile(f"member {info.name!r} has over {MAX_RECORD:,} bytes: {SMALLER}")
        if not info.isreg():
            text = "is a link, a device or a pipe: write the file itself into the tar"
            wrong = BadRecord("bad_member", text)
        elif wants:
            data = read(info.offset_data, info.size)
            if taken is not None:
                taken(data)
        at = archive.offset
        if info.isreg() or info.islnk() or info.issym() or info.isdev():
            nbytes = info.size if info.isreg() else 0
            yield Member(info.name, info.offset, at, data, info.offset_data, nbytes, wrong)
    if is_archive:
        file.seek(at)
        _check_end(file, at, taken)
    elif at != end:
        raise BrokenFile(f"there is no header of a tar's member at byte {at}")


def _check_end(file: IO[bytes], at: int, taken: Callable[[bytes], object] | None) -> None:
    """Nothing but zeros may follow the end: tars joined by `cat` hold more than anybody reads."""
    place = at
    while data := file.read(_MOST):
        place += len(data)
        if data.count(0) != len(data):
            raise BrokenFile(
                f"there is neither a header of a tar's member at byte {at} nor its empty end: it "
                "is cut or damaged, or something follows the end (tars joined by cat are shards of "
                "their own, so keep them apart)"
            )
        if taken is not None:
            taken(data)
    if place - at < _BLOCK or place % _BLOCK:
        raise BrokenFile(
            f"the tar is cut or was not closed: it stops at byte {place} without its end's empty "
            "blocks"
        )


# -- samples ---------------------------------------------------------------------------------------


def samples_of(members: Iterator[Member]) -> Iterator[Sample]:
    """Members grouped by key; one that its sample has already begins another of that key."""
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
    """Return whether a member is its sample's record, or a text beside it."""
    split = _split_name(name)
    return split is not None and split[1] in (_RECORD, _TEXT)


def record_of(sample: Sample) -> dict[str, Any]:
    """The record of a sample, its files beside it.

    Raises:
        BadRecord: it has none, or one that cannot be decoded, or a member is not a file.
    """
    if not _is_text(sample.key):
        raise BadRecord("bad_utf8", f"the key {sample.key!r} is not UTF-8: rename it")
    files = sample.extensions.values()
    for file in files:
        if file.wrong is not None:
            raise BadRecord(file.wrong.reason, f"member {file.name!r}: {file.wrong.detail}")
    own = [sample.extensions.get(extension) for extension in (_RECORD, _TEXT)]
    if own == [None, None]:
        has = ", ".join(sample.extensions)[:200]
        text = f"has no json or txt member, only {has}: a record is one of these"
        raise BadRecord("bad_record", f"sample {sample.key!r} {text}")
    member, text_file = own
    record: dict[str, Any] = {}
    if member is not None:
        content = member.data if isinstance(member.data, bytes) else b""
        try:
            record = decode(content)
        except BadRecord as error:
            where = f"(member {member.name!r} of the shard)"
            raise BadRecord(error.reason, f"{error.detail} {where}") from None
    others = {file.name: file.data or b"" for file in files if file not in own}
    if text_file is not None:
        record = _with_text(record, text_file, member is None)
    if record.get("id") in (None, ""):
        record["id"] = sample.key
    return {**record, KEY: sample.key, MEMBERS: Members(sample.key, others)}


def _with_text(record: dict[str, Any], file: Member, is_alone: bool) -> dict[str, Any]:
    """`record` with the text beside it, unless it has one of that name.

    Raises:
        BadRecord: ``bad_utf8``, the text is all there is, and is not UTF-8.
    """
    try:
        text = (file.data if isinstance(file.data, bytes) else b"").decode()
    except UnicodeDecodeError:
        if is_alone:
            detail = f"member {file.name!r} is not UTF-8: write it anew"
            raise BadRecord("bad_utf8", detail) from None
        return record  # it may be anything beside a record that says what it needs itself
    return {_TEXT: text, **record}


def _lonely(sample: Sample) -> BadRecord:
    names = ", ".join(member.name for member in sample.extensions.values())
    return BadRecord(
        APART,
        f"sample {sample.key!r} has only {names[:200]}: its media are elsewhere in the shard or in "
        "the next one, or missing; write the members of a sample side by side",
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- keys ------------------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _contents(extensions: tuple[str, ...]) -> int:
    """The kind of sample that has these members: `_CHAT`, `_CAPTION`, `_MEDIA`, `_WHOLE` or 0."""
    has_record = not {_RECORD, _TEXT}.isdisjoint(extensions)
    if any(media_in(f"x.{extension}") for extension in extensions):
        return _WHOLE if has_record else _MEDIA
    return _CHAT if _RECORD in extensions else _CAPTION if has_record else 0


def _apart(contents: bytearray, bases: bytearray) -> list[int]:
    """Return the rows of records whose media are in another sample, or missing.

    A record without media lacks those that lie under its base name without a record. A text without
    a record lacks an image if most samples of the shard have one.
    """
    kinds, names = np.frombuffer(contents, np.uint8), np.frombuffer(bases, "<u8")
    apart = (kinds <= _CAPTION) & (kinds > 0) & np.isin(names, names[kinds == _MEDIA])
    if np.count_nonzero(kinds == _WHOLE) > np.count_nonzero(kinds == _CAPTION):
        apart |= kinds == _CAPTION
    return [int(row) for row in np.flatnonzero(apart)]


def mark_torn(one: Ranges, other: Ranges) -> tuple[Ranges, Ranges]:
    """The ranges of two shards in a row, a record that is cut from its media marked as `apart`."""
    if one and other and isinstance(one[-1], TarRange) and isinstance(other[0], TarRange):
        (key, kind), (next_key, next_kind) = one[-1].ends[-1], other[0].ends[0]
        if key == next_key and (kind, next_kind) in ((_CHAT, _MEDIA), (_CAPTION, _MEDIA)):
            last = one[-1].first_row + one[-1].num_records - 1
            one = (*one[:-1], replace(one[-1], apart=(*one[-1].apart, last)))
        if key == next_key and (next_kind, kind) in ((_CHAT, _MEDIA), (_CAPTION, _MEDIA)):
            other = (replace(other[0], apart=(0, *other[0].apart)), *other[1:])
    return one, other
