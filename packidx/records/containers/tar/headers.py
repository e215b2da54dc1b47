"""Headers of a tar's members, decoded by Python's `tarfile`, extended ones included.

Where `tarfile` would stop without a word, at a header that is none, there is an error.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator

from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import Stream

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
