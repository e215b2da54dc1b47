"""WebDataset: uncompressed tars of samples, each a run of members with one key.

A member's key is its name up to the first dot of its base name, as the `webdataset` package has it
(`base_plus_ext` in its tariterators.py); what follows the dot is its extension. A sample's record
is its ``json`` member, or its ``txt`` member as the text; its other members stand beside it. The
locator of a sample is the byte range of all its members, headers included, so that it is read
without opening the tar.

A scan reads headers and records, and passes over everything else: a corpus of images is counted
by some percent of its bytes. So the digest is of these (FORMAT.md), and records that are read in
order have their media as `Extent`s; one sample is read with all its bytes, by one request.

Python's `tarfile` decodes the headers. It stops without a word at a damaged one and at a missing
end, and here both are errors: samples must not vanish because a shard was cut.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from msgspec.structs import replace

from packidx.errors import BadRecord, SourceError
from packidx.format.manifest import RecordRange
from packidx.io import ranges, urls
from packidx.io.ranges import Extent
from packidx.records.containers import base
from packidx.records.containers.lines import decode_line
from packidx.records.media.references import media_in

KEY = "__key__"
"""Column of a sample's key, as in a WebDataset."""
TORN = "torn_sample"
"""Reason of a sample whose members do not lie together."""

_RECORD, _TEXT = "json", "txt"  # extensions
_ORPHAN, _CAPTION, _CHAT, _WHOLE = 1, 2, 3, 4  # media alone, text alone, a record, text and media
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_BLOCK = 512  # bytes of a header
_GLANCE = 4096  # bytes of a medium that are counted as work: most that is looked at is a header
_SCAN_BLOCK, _MOST = 1 << 14, 1 << 20  # bytes of a request to a store
_SMALL = 1 << 18  # bytes of a sample that is read through rather than jumped over


@dataclass(slots=True)
class Sample:
    """Neighbouring members of one key."""

    key: str
    start: int
    end: int
    files: dict[str, Extent] = field(default_factory=dict)
    """Members by extension; a link or a device is an empty one."""
    data: dict[str, bytes] = field(default_factory=dict)
    """Content of those that were read."""

    @property
    def kind(self) -> int:
        """Its parts."""
        if any(media_in(f"x.{extension}") for extension in self.files):
            return _ORPHAN if {_RECORD, _TEXT}.isdisjoint(self.files) else _WHOLE
        return _CHAT if _RECORD in self.files else _CAPTION if _TEXT in self.files else 0

    @property
    def media(self) -> dict[str, bytes | Extent]:
        """All but the record and its text, by their whole names."""
        others = {end: file for end, file in self.files.items() if end not in (_RECORD, _TEXT)}
        return {file.name: self.data.get(end, file) for end, file in others.items()}

    @property
    def work(self) -> int:
        """Bytes that are read to count it, and not those of its media: an hour of counting is then
        thousands of parts, whatever the images weigh."""
        most = {_RECORD: self.end}
        sizes = (min(file.nbytes, most.get(end, _GLANCE)) for end, file in self.files.items())
        return sum(_BLOCK + size for size in sizes)


class Tar(base.Container):
    """A WebDataset shard."""

    hashes_all = False

    def scan(self, path: str, task_bytes: int = base.TASK_BYTES) -> base.ShardScan:
        hasher, cuts, work, nbytes = (
            hashlib.sha256(),
            base.Cuts(task_bytes),
            0,
            base.file_version(path)[0],
        )
        seen: list[tuple[int, str]] = []
        keys: list[str] = []
        end, blocks = 0, None
        if urls.is_url(path):
            is_dense = ranges.read_source(path, 0, _SMALL).count(b"ustar") > 4
            blocks = ranges.blocks_of(path, nbytes, _MOST if is_dense else _SCAN_BLOCK)
        whole = Extent(path, 0, nbytes, blocks=blocks)
        try:
            for sample in samples_of(whole.open(), 0, nbytes, whole, is_archive=True):
                cuts.at(sample.start, len(seen), work)
                work, end = work + sample.work, sample.end
                keys = [*keys[:1], sample.key]
                seen.append((sample.kind, sample.key.rpartition("/")[2]))
                for extension, file in sample.files.items():
                    hasher.update(f"{file.name}\0{file.nbytes}\0".encode())
                    hasher.update(sample.data.get(extension, b""))
        except base.BrokenFile as error:
            behind = f"sample {keys[-1]!r} is whole" if keys else "no sample is whole"
            raise SourceError(f"{path}: {error}; {behind}: restore the shard") from None
        if not seen:
            return base.ShardScan(nbytes, hasher.hexdigest(), 0, ())
        torn = _find_torn(seen)
        parts = tuple(
            replace(part, torn=tuple(n for n in torn if 0 <= n - part.first_row < part.num_records))
            for part in cuts.ranges(end, len(seen), work)
        )
        edges = tuple((keys[at], seen[at][0] == _ORPHAN) for at in (0, -1))
        return base.ShardScan(nbytes, hasher.hexdigest(), len(seen), parts, edges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[base.Record]:
        start, end = record_range.start, record_range.end
        row, blocks = record_range.first_row, None
        if urls.is_url(path):
            is_dense = _MOST < end - start < _SMALL * record_range.num_records
            blocks = ranges.blocks_of(path, end, _MOST if is_dense else ranges.BLOCK)
        whole = Extent(path, 0, end, blocks=blocks)
        with base.name_path(path):
            for sample in samples_of(whole.open(), start, end, whole):
                at = base.Locator(row, sample.start, sample.end - sample.start)
                data = _data_of(sample)
                if row in record_range.torn:
                    names = ", ".join(file.name for file in sample.files.values())
                    text = f"sample {sample.key!r} has only {names[:200]}: other members are "
                    text += "elsewhere in the shard, in another one, or missing; write the members"
                    data = BadRecord(TORN, f"{text} of a sample side by side")
                yield base.Record(data, at, sample.key, sample.media)
                row += 1
        if row < record_range.first_row + record_range.num_records:
            raise base.too_few(path, row)

    def read_one(self, path: str, at: base.Locator) -> base.Record:
        data = base.read_bytes(path, at)
        with base.name_path(f"{path}, from byte {at.offset} on"):
            samples = list(samples_of(io.BytesIO(data), 0, len(data)))
        if len(samples) != 1:
            text = f"{len(samples)} samples in {at.nbytes} bytes from byte {at.offset} on"
            raise SourceError(f"{path} has {text}, where one was counted: run estimate again")
        return base.Record(_data_of(samples[0]), at, samples[0].key, samples[0].media)


def _find_torn(samples: Sequence[tuple[int, str]]) -> list[int]:
    """Return the rows of records whose media stand elsewhere in the shard, or are missing.

    A record lacks media that stand without a record under its base name, in whatever folder. A text
    without a record lacks an image if most samples (kind and base name) of the shard have one.
    """
    apart = {name for kind, name in samples if kind == _ORPHAN}
    kinds = [kind for kind, _ in samples]
    lacks_image = {_CAPTION} if kinds.count(_WHOLE) > kinds.count(_CAPTION) else {}
    return [
        row
        for row, (kind, name) in enumerate(samples)
        if kind in lacks_image or (kind > _ORPHAN and name in apart)
    ]


def samples_of(
    file: IO[bytes], start: int, end: int, source: Extent | None = None, *, is_archive: bool = False
) -> Iterator[Sample]:
    """Yield members grouped by key; one that its sample has already begins another of that key.

    Args:
        file: can seek.
        start, end: the first byte of a header, and one past the last member or the archive.
        source: the file, whose media are not read; None reads all members.
        is_archive: the file is an archive to its end; otherwise a run of whole members.

    Raises:
        BrokenFile: it is cut, or a header is none.
    """
    at = file.seek(start)
    archive: tarfile.TarFile | None = None
    sample: Sample | None = None
    while True:
        try:
            if archive is None:
                archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="replace")
            info = archive.next()
        except (tarfile.TarError, ValueError, OSError) as error:
            text = f"there is no header of a tar's member at byte {at} ({error})"
            raise base.BrokenFile(text) from None
        if info is None:
            break
        archive.members = []  # type: ignore[attr-defined]  # it would keep them all
        if archive.offset > end:
            text = f"{info.size} bytes and their padding from byte {info.offset_data} on"
            raise base.BrokenFile(f"the tar is cut inside member {info.name!r}, which has {text}")
        at = archive.offset
        # As `webdataset`, pass over names without a key, or about the data set.
        split = None if info.isdir() or _META.match(info.name) else _NAME.fullmatch(info.name)
        if split is None:
            continue
        key, extension = split[1], split[2].lower()
        if sample is None or sample.key != key or extension in sample.files:
            if sample is not None:
                yield sample
            sample = Sample(key, info.offset, at)
        nbytes = info.size if info.isreg() and not info.issparse() else 0
        place = (source.path, source.blocks) if source is not None else ("", None)
        sample.files[extension] = Extent(place[0], info.offset_data, nbytes, info.name, place[1])
        if source is None or extension in (_RECORD, _TEXT):
            file.seek(info.offset_data)
            sample.data[extension] = file.read(nbytes)
        sample.end = at
    if sample is not None:
        yield sample
    if is_archive:
        file.seek(at)
        rest = file.read(_MOST + 1)
        if any(rest) or len(rest) > _MOST:
            text = f"there is neither a header of a tar's member at byte {at} nor its empty end"
            raise base.BrokenFile(f"{text}: it is damaged, or two tars are joined")
        if len(rest) < _BLOCK or len(rest) % _BLOCK:
            raise base.BrokenFile(f"the tar is cut: it stops at byte {at} without an empty block")
    elif at != end:
        raise base.BrokenFile(f"there is no header of a tar's member at byte {at}")


def _data_of(sample: Sample) -> dict[str, Any] | BadRecord:
    """Return the record of a sample, or why it has none."""
    member, text = map(sample.data.get, (_RECORD, _TEXT))
    if member is None and text is None:
        has = ", ".join(sample.files)[:200]
        wrong = f"has no json or txt member, only {has}: a record is one of these"
        return BadRecord("bad_record", f"sample {sample.key!r} {wrong}")
    record = {} if member is None else decode_line(member)
    if isinstance(record, BadRecord):
        where = f"(member {sample.files[_RECORD].name!r} of the shard)"
        return BadRecord(record.reason, f"{record.detail} {where}")
    if text is not None:
        try:
            record = {_TEXT: text.decode(), **record}
        except UnicodeDecodeError:
            return BadRecord("bad_utf8", f"member {sample.files[_TEXT].name!r} is not UTF-8")
    if record.get("id") in (None, ""):
        record["id"] = sample.key
    return {**record, KEY: sample.key}
