"""Members of a tar archive in a stream of blocks: names and places, and content where wanted.

Python's `tarfile`, which decodes the headers, stops without a word at a damaged one and at a
missing end, and here both are errors: samples must not vanish because a shard was cut. Format:
POSIX.1-2017, pax, "ustar Interchange Format".
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packidx.errors import BadRecord
from packidx.io.ranges import Extent, ReadAhead
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import MAX_RECORD, Stream, too_large
from packidx.records.containers.tar.headers import (
    EXTENDED,
    MAX_EXTENDED,
    RECORD,
    SPARSE,
    check_is_plain,
    decode_header,
    padded_size,
    pass_global,
    read_extension,
    with_extension,
)

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
