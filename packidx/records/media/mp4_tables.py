"""Whether an MP4 can hold as many frames as its tables claim, before a decoder believes them.

A table of sizes that are all equal is a number and no table (ISO/IEC 14496-12, 8.7.3.2 and 8.8.8):
a file of a thousand bytes may claim a hundred million frames. FFmpeg makes an index of them all,
of some gigabytes, when it opens the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from packidx.errors import BadRecord

_INNER = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"}
_MOST_BOXES = 1 << 10  # of one level: opening a fragmented file does not read all its fragments
_DEEPEST = 6
_PER_BYTE = 16  # sound of old QuickTime files has several samples in a byte


def check_claims(file: IO[bytes], nbytes: int, label: str) -> None:
    """Refuse a file whose tables claim what it has no room for; `file` is then at its beginning.

    Args:
        file: a video of any kind; only those with MP4's boxes are looked at.
        nbytes: its size.
        label: how the error names it.

    Raises:
        BadRecord: ``broken_media``.
        OSError: it cannot be read.
    """
    if file.read(8)[4:] in (b"ftyp", b"moov", b"styp", b"wide", b"free", b"skip", b"mdat"):
        for number in _claims(file, 0, nbytes, 0):
            if number > nbytes * _PER_BYTE:
                text = f"{label} claims {number} frames in {nbytes} bytes"
                raise BadRecord("broken_media", text)
    file.seek(0)


def _claims(file: IO[bytes], start: int, end: int, depth: int) -> Iterator[int]:
    """Numbers of frames in the tables between two offsets."""
    for _ in range(_MOST_BOXES):
        if end - start < 16:
            return
        file.seek(start)
        head = file.read(28)
        size, kind, content = int.from_bytes(head[:4], "big"), head[4:8], head[8:]
        if size == 1:
            size, content = int.from_bytes(head[8:16], "big"), head[16:]
        elif size == 0:
            size = end - start
        if size < len(head) - len(content):
            return  # no box: the decoder says what is wrong
        if kind in _INNER and depth < _DEEPEST:
            body = start + len(head) - len(content)
            yield from _claims(file, body, min(start + size, end), depth + 1)
        elif kind == b"stsz":
            yield int.from_bytes(content[8:12], "big")
        elif kind == b"trun":
            yield int.from_bytes(content[4:8], "big")
        start += size
