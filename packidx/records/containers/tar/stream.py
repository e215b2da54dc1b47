"""Members of a tar archive in a stream of blocks: names and places, and content where wanted.

Python's `tarfile`, which decodes the headers, stops without a word at a damaged one and at a
missing end, and here both are errors: samples must not vanish because a shard was cut. Format:
POSIX.1-2017, pax, "ustar Interchange Format".
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packidx.errors import BadRecord
from packidx.io.ranges import Extent, ReadAhead
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import MAX_RECORD, Stream, too_large

_SPARSE_MAP = 482  # byte of a header of type S, 504 of the blocks behind it: another block follows
_NO_FILE = {
    tarfile.LNKTYPE: "a hard link to {!r}",
    tarfile.SYMTYPE: "a symbolic link to {!r}",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}


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
    offset: int = 0
    """First byte of its content."""
    nbytes: int = 0
    """Of its content."""
    wrong: BadRecord | None = None
    """Why there is no content to be had of it."""


class CutMember(BrokenFile):
    """A tar that ends inside the member `name`."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def members(
    stream: Stream, *, content: bool | Callable[[str], bool], is_archive: bool
) -> Iterator[Member]:
    """The files of an archive, in order; links and devices that have a place in it, too.

    Args:
        content: whether to take what is in them, or of which, by their names.
        is_archive: the stream is an archive to its end; otherwise a run of whole members.

    Raises:
        BrokenFile: it is cut, or a header is none.
    """
    extended, start = b"", stream.at
    wrong: BadRecord | None = None
    while True:
        at = stream.at
        start = start if extended else at
        header = stream.take(RECORD)
        if not header and not extended and not is_archive:
            return
        if at == 0:
            check_is_plain(header)
        if len(header) < RECORD:
            raise BrokenFile(_cut(at, header))
        if not header.strip(b"\0") and not extended:
            break
        info = decode_header(header, at)
        if info.type in (*EXTENDED, tarfile.XGLTYPE):
            if info.type == tarfile.XGLTYPE:
                pass_global(stream, info)
                continue
            if info.size > MAX_EXTENDED:
                wrong = _bad_member(f"has an extended header of {info.size:,} bytes")
            extended += read_extension(stream, header, info)
            continue
        sparse = header[156:157] == tarfile.GNUTYPE_SPARSE
        more = sparse and header[_SPARSE_MAP] != 0
        if extended:
            if sparse:  # as a plain file of what is stored of it, or its map would be looked for
                info.type = tarfile.REGTYPE
                header = info.tobuf(tarfile.GNU_FORMAT)
            info = with_extension(extended, header, at)
            sparse, extended = sparse or SPARSE in info.pax_headers, b""
        while more:
            more = stream.take(RECORD)[504:505] not in (b"", b"\0")
        if sparse:
            wrong = _bad_member("is stored as a sparse file, so write the tar without --sparse")
        if info.type in _NO_FILE:
            what = _NO_FILE[info.type].format(info.linkname)
            wrong = _bad_member(f"is {what}, so write the file itself into the tar")
        taken = info.isreg() and (content if isinstance(content, bool) else content(info.name))
        if taken and callable(content) and info.size > MAX_RECORD:
            taken, wrong = False, too_large(info.size, MAX_RECORD)
        begin = stream.at
        data = _content(stream, info, taken and wrong is None)
        if info.isreg() or info.type in _NO_FILE:
            nbytes = info.size if info.isreg() else 0
            yield Member(info.name, start, stream.at, data, begin, nbytes, wrong)
        wrong = None
    if not is_archive:
        raise BrokenFile(f"there is no header of a tar's member at byte {at}")
    _check_end(stream)


def _cut(at: int, header: bytes) -> str:
    if at == 0:
        return "it is empty" if not header else "it is no tar, whose headers have 512 bytes"
    if header:
        return f"the tar is cut inside the header at byte {at}"
    return f"the tar is cut or was not closed: it stops at byte {at} without its end's empty blocks"


def _bad_member(text: str) -> BadRecord:
    return BadRecord("bad_member", text)


def _content(stream: Stream, info: tarfile.TarInfo, wanted: bool) -> bytes | None:
    if not info.isreg() and info.type in tarfile.SUPPORTED_TYPES:
        return None  # folders and links, whatever size they state
    at, padding = stream.at, padded_size(info.size) - info.size
    data = stream.take(info.size) if wanted else None
    nbytes = stream.skip(info.size) if data is None else len(data)
    if nbytes < info.size:
        text = f"the tar is cut inside member {info.name!r}: {nbytes} of its {info.size} bytes"
        raise CutMember(info.name, f"{text} are there from byte {at} on")
    if stream.skip(padding) < padding:
        raise CutMember(info.name, f"the tar is cut behind member {info.name!r}")
    return data


def _check_end(stream: Stream) -> None:
    """Nothing but zeros may follow the end: tars joined by `cat` hold more than anybody reads."""
    for block in stream.rest():
        if block.count(0) != len(block):
            raise BrokenFile(
                f"something follows the tar's end before byte {stream.at}: tars joined by cat are "
                "shards of their own, so keep them apart"
            )
    if stream.at % RECORD:
        raise BrokenFile(f"the tar is cut inside its end, at byte {stream.at}")


class SkippingStream(Stream):
    """Bytes of a file that are read when they are taken; what is skipped is not read.

    Args:
        taken: called with what is read.
    """

    def __init__(
        self, read_ahead: ReadAhead, at: int = 0, taken: Callable[[bytes], None] | None = None
    ) -> None:
        super().__init__(iter(()), at)
        self._read_ahead, self._taken = read_ahead, taken

    def take(self, nbytes: int) -> bytes:
        data = self._read_ahead.read(self.at, nbytes)
        self.at += len(data)
        if self._taken is not None:
            self._taken(data)
        return data

    def skip(self, nbytes: int) -> int:
        passed = min(nbytes, self._read_ahead.end - self.at)
        self.at += passed
        return passed

    def rest(self) -> Iterator[bytes]:
        while data := self.take(1 << 20):
            yield data


RECORD = 512
"""Bytes of a header, and what content is padded to."""

EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
MAX_EXTENDED = 1 << 20  # bytes that are looked at; names and times
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_RECORD_LENGTH = re.compile(rb"(\d{1,20}) ")
SPARSE = "packidx.sparse"  # key of headers that described a sparse file
_NOT_GLOBAL = (b" path=", b" size=", b" GNU.sparse.")  # of one member each, or they make no sense
_MAGIC = {b"\x1f\x8b": "gunzip", b"\x28\xb5": "unzstd", b"BZ": "bunzip2", b"\xfd7": "unxz"}


def check_is_plain(header: bytes) -> None:
    """Raise a `BrokenFile` if a tar's first header begins as a compressed file does."""
    if (tool := _MAGIC.get(header[:2])) is not None:
        raise BrokenFile(
            f"it is compressed, and only in a plain tar samples have byte ranges: {tool} it"
        )


def decode_header(header: bytes, at: int) -> tarfile.TarInfo:
    """The member that a header describes by itself; a `BrokenFile` if it is none."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if info.size < 0:
            raise tarfile.HeaderError("a negative size")
    except (tarfile.TarError, ValueError) as error:
        raise BrokenFile(f"there is no header of a tar's member at byte {at} ({error})") from None
    return info


def pass_global(stream: Stream, info: tarfile.TarInfo) -> None:
    """Pass over a global header, which may say nothing of a member."""
    at, left, seen = stream.at, padded_size(info.size), b""
    while left:
        body = stream.take(min(left, MAX_EXTENDED))
        left -= len(body)
        if not body:
            raise BrokenFile(f"the tar is cut inside the extended header at byte {at}")
        if any(word in seen + body for word in _NOT_GLOBAL):
            raise BrokenFile(
                f"a global header before byte {stream.at} names a member: write the tar without"
            )
        seen = body[-RECORD:]


def read_extension(stream: Stream, header: bytes, info: tarfile.TarInfo) -> bytes:
    """An extended header and its content, of which so much as is looked at."""
    at, padded = stream.at, padded_size(info.size)
    body = stream.take(min(padded, MAX_EXTENDED))
    rest = padded - len(body)
    if stream.skip(rest) < rest:
        raise BrokenFile(f"the tar is cut inside the extended header at byte {at}")
    if not rest:
        return header + body
    records = b"".join(_records(body)) if info.type in _PAX else body[: 8 * RECORD]
    info.size = len(records)
    return info.tobuf(tarfile.GNU_FORMAT) + records.ljust(padded_size(len(records)), b"\0")


def _records(body: bytes) -> Iterator[bytes]:
    """The whole ones of a pax header's records, ``LENGTH KEY=VALUE`` and a newline."""
    at = 0
    while (stated := _RECORD_LENGTH.match(body, at)) and at + int(stated[1]) <= len(body):
        record = body[at : at + int(stated[1])]
        if not record:
            return
        yield record
        at += len(record)


def with_extension(extended: bytes, header: bytes, at: int) -> tarfile.TarInfo:
    """The member that extended headers and its own describe, as `tarfile` understands them.

    What they say of a sparse file is hidden from it, since that would take its content for headers.
    """
    headers = extended.replace(b" GNU.sparse.", b" HID.sparse.") + header
    try:
        with tarfile.TarFile(
            fileobj=io.BytesIO(headers), encoding="utf-8", errors="surrogateescape"
        ) as archive:
            info = archive.next()
    except (tarfile.TarError, ValueError, OSError) as error:
        raise BrokenFile(f"the extended header before byte {at} is broken ({error})") from None
    if info is None or info.size < 0:
        raise BrokenFile(f"the extended header before byte {at} is followed by no member")
    hidden = [name for name in info.pax_headers if name.startswith("HID.sparse.")]
    if hidden:
        info.name = info.pax_headers.get("HID.sparse.name", info.name)
        info.pax_headers = {SPARSE: ""}
    return info


def padded_size(nbytes: int) -> int:
    """Bytes that content of so many takes in the tar."""
    return -(-nbytes // RECORD) * RECORD
