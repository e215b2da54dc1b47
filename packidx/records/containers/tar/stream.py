"""Members of a tar archive in a stream of blocks: names and places, and content where wanted.

Headers are decoded by Python's `tarfile`, extended ones (pax, GNU long names) included; but it
stops without a word at a damaged header and at a missing end, and here both are errors: samples
must not vanish because a shard was cut. Format: POSIX.1-2017, pax, "ustar Interchange Format".
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packidx.errors import BadRecord
from packidx.io.ranges import Extent, Window
from packidx.records.containers.base import MAX_RECORD, BrokenFile, too_large

RECORD = 512
"""Bytes of a header, and what content is padded to."""

_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_MAX_EXTENDED = 1 << 20  # bytes that are looked at; names and times
_SPARSE_MAP = 482  # byte of a header of type S, 504 of the blocks behind it: another block follows
_NO_FILE = {
    tarfile.LNKTYPE: "a hard link to {!r}",
    tarfile.SYMTYPE: "a symbolic link to {!r}",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_RECORD_LENGTH = re.compile(rb"(\d{1,20}) ")
_SPARSE = "packidx.sparse"  # key of headers that described a sparse file
_NOT_GLOBAL = (b" path=", b" size=", b" GNU.sparse.")  # of one member each, or they make no sense
_MAGIC = {b"\x1f\x8b": "gunzip", b"\x28\xb5": "unzstd", b"BZ": "bunzip2", b"\xfd7": "unxz"}


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
    """A tar that ends inside a member.

    Args:
        name: the member's.
        text: what is wrong.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Stream:
    """Bytes of a file in order, taken or skipped.

    Args:
        blocks: the bytes.
        at: offset of the first one in the file.
    """

    def __init__(self, blocks: Iterator[bytes], at: int = 0) -> None:
        self.at = at
        self._blocks = blocks
        self._block, self._used = b"", 0

    def take(self, nbytes: int) -> bytes:
        """The next `nbytes`; fewer where the stream ends."""
        block, used = self._block, self._used
        if used + nbytes <= len(block):
            self._used += nbytes
            self.at += nbytes
            return block[used : used + nbytes]
        return b"".join(self._pieces(nbytes))

    def skip(self, nbytes: int) -> int:
        """Pass over the next `nbytes`; how many there were."""
        if self._used + nbytes <= len(self._block):
            self._used += nbytes
            self.at += nbytes
            return nbytes
        return sum(map(len, self._pieces(nbytes)))

    def rest(self) -> Iterator[bytes]:
        """All that is left, block by block."""
        return self._pieces(None)

    def _pieces(self, nbytes: int | None) -> Iterator[bytes]:
        left = nbytes
        while left is None or left > 0:
            if self._used == len(self._block):
                self._block, self._used = next(self._blocks, b""), 0
                if not self._block:
                    return
            end = len(self._block) if left is None else self._used + left
            piece = self._block[self._used : end]
            self._used += len(piece)
            self.at += len(piece)
            left = None if left is None else left - len(piece)
            yield piece


class Places(Stream):
    """Bytes of a file that are read when they are taken; what is skipped is not read.

    Args:
        window: onto the file.
        at: where it begins.
        taken: called with what is read.
    """

    def __init__(
        self, window: Window, at: int = 0, taken: Callable[[bytes], None] | None = None
    ) -> None:
        super().__init__(iter(()), at)
        self._window, self._taken = window, taken

    def take(self, nbytes: int) -> bytes:
        data = self._window.read(self.at, nbytes)
        self.at += len(data)
        if self._taken is not None:
            self._taken(data)
        return data

    def skip(self, nbytes: int) -> int:
        passed = min(nbytes, self._window.end - self.at)
        self.at += passed
        return passed

    def rest(self) -> Iterator[bytes]:
        while data := self.take(1 << 20):
            yield data


def members(
    stream: Stream, *, content: bool | Callable[[str], bool], whole: bool
) -> Iterator[Member]:
    """The files of an archive, in order; links and devices that have a place in it, too.

    Args:
        stream: stands at a header.
        content: whether to take what is in them, or of which, by their names.
        whole: the stream is an archive to its end; otherwise a run of whole members.

    Raises:
        BrokenFile: it is cut, or a header is none.
    """
    extended, start = b"", stream.at
    wrong: BadRecord | None = None
    while True:
        at = stream.at
        start = start if extended else at
        header = stream.take(RECORD)
        if not header and not extended and not whole:
            return
        if at == 0:
            _refuse_compressed(header)
        if len(header) < RECORD:
            raise BrokenFile(_cut(at, header))
        if not header.strip(b"\0") and not extended:
            break
        info = _decoded(header, at)
        if info.type in (*_EXTENDED, tarfile.XGLTYPE):
            if info.type == tarfile.XGLTYPE:
                _pass_global(stream, info)
                continue
            if info.size > _MAX_EXTENDED:
                wrong = _bad_member(f"has an extended header of {info.size:,} bytes")
            extended += _extension(stream, header, info)
            continue
        sparse = header[156:157] == tarfile.GNUTYPE_SPARSE
        more = sparse and header[_SPARSE_MAP] != 0
        if extended:
            info = _with_extension(extended, _as_file(header) if sparse else header, at)
            sparse, extended = sparse or _SPARSE in info.pax_headers, b""
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
    if not whole:
        raise BrokenFile(f"there is no header of a tar's member at byte {at}")
    _check_end(stream)


def _cut(at: int, header: bytes) -> str:
    if at == 0:
        return "it is empty" if not header else "it is no tar, whose headers have 512 bytes"
    if header:
        return f"the tar is cut inside the header at byte {at}"
    return f"the tar is cut or was not closed: it stops at byte {at} without its end's empty blocks"


def _refuse_compressed(header: bytes) -> None:
    if (tool := _MAGIC.get(header[:2])) is not None:
        raise BrokenFile(
            f"it is compressed, and only in a plain tar samples have byte ranges: {tool} it"
        )


def _decoded(header: bytes, at: int) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if info.size < 0:
            raise tarfile.HeaderError("a negative size")
    except (tarfile.TarError, ValueError) as error:
        raise BrokenFile(f"there is no header of a tar's member at byte {at} ({error})") from None
    return info


def _bad_member(text: str) -> BadRecord:
    return BadRecord("bad_member", text)


def _pass_global(stream: Stream, info: tarfile.TarInfo) -> None:
    """Pass over a global header, which may say nothing of a member."""
    at, left, seen = stream.at, _padded(info.size), b""
    while left:
        body = stream.take(min(left, _MAX_EXTENDED))
        left -= len(body)
        if not body:
            raise BrokenFile(f"the tar is cut inside the extended header at byte {at}")
        if any(word in seen + body for word in _NOT_GLOBAL):
            raise BrokenFile(
                f"a global header before byte {stream.at} names a member: write the tar without"
            )
        seen = body[-RECORD:]


def _extension(stream: Stream, header: bytes, info: tarfile.TarInfo) -> bytes:
    """An extended header and its content, of which so much as is looked at."""
    at, padded = stream.at, _padded(info.size)
    body = stream.take(min(padded, _MAX_EXTENDED))
    rest = padded - len(body)
    if stream.skip(rest) < rest:
        raise BrokenFile(f"the tar is cut inside the extended header at byte {at}")
    if not rest:
        return header + body
    whole = b"".join(_records(body)) if info.type in _PAX else body[: 8 * RECORD]
    info.size = len(whole)
    return info.tobuf(tarfile.GNU_FORMAT) + whole.ljust(_padded(len(whole)), b"\0")


def _records(body: bytes) -> Iterator[bytes]:
    """The whole ones of a pax header's records, ``LENGTH KEY=VALUE`` and a newline."""
    at = 0
    while (found := _RECORD_LENGTH.match(body, at)) and at + int(found[1]) <= len(body):
        record = body[at : at + int(found[1])]
        if not record:
            return
        yield record
        at += len(record)


def _as_file(header: bytes) -> bytes:
    """The header of a sparse file as that of a file of what is stored of it."""
    made = bytearray(header)
    made[156:157] = tarfile.REGTYPE
    made[345:500] = bytes(155)  # of a sparse file no part of the name, as it is of others
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def _with_extension(extended: bytes, header: bytes, at: int) -> tarfile.TarInfo:
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
        info.pax_headers = {_SPARSE: ""}
    return info


def _content(stream: Stream, info: tarfile.TarInfo, wanted: bool) -> bytes | None:
    if not info.isreg() and info.type in tarfile.SUPPORTED_TYPES:
        return None  # folders and links, whatever size they state
    at, padding = stream.at, _padded(info.size) - info.size
    data = stream.take(info.size) if wanted else None
    found = stream.skip(info.size) if data is None else len(data)
    if found < info.size:
        text = f"the tar is cut inside member {info.name!r}: {found} of its {info.size} bytes"
        raise CutMember(info.name, f"{text} are there from byte {at} on")
    if stream.skip(padding) < padding:
        raise CutMember(info.name, f"the tar is cut behind member {info.name!r}")
    return data


def _padded(nbytes: int) -> int:
    return -(-nbytes // RECORD) * RECORD


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
