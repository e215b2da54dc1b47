"""Compressed text: its blocks in order, and unpacked in the local cache for records by row.

A row of a compressed file has no byte range. So the first row that is asked for has the file
unpacked into the cache (`packidx.io.cache`), with where each record begins behind its text; from
then on a row is a range of that copy, for all processes of this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.blocks import (
    BLOCK,
    MAX_RECORD,
    Stream,
    file_blocks,
    file_version,
    local_shard,
    size_of,
)

GZIP, ZSTD = "gz", "zst"

_INPUT = 1 << 18
_ENTRY = 16  # bytes of the index behind the text: a record's offset and size, as 64-bit integers


class Text(ABC):
    """How records stand in a stream of text; a key of what is remembered, as an object.

    Args:
        max_record: bytes of a record; a larger one is a `TooLarge`.
    """

    def __init__(self, max_record: int = MAX_RECORD) -> None:
        self.max_record = max_record

    @property
    def name(self) -> str:
        """Another one for each way of cutting a text into records."""
        return type(self).__name__

    @abstractmethod
    def items(self, blocks: Iterator[bytes], at: int, begun: bool) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of every record.

        Args:
            at: offset of the first block.
            begun: `at` is a record's start; otherwise the text's.
        """

    def header(self, blocks: Iterator[bytes]) -> Any:
        """What is needed to decode a record."""
        return None

    @abstractmethod
    def records(
        self, blocks: Iterator[bytes], at: int, begun: bool, header: Any
    ) -> Iterator[tuple[int, int, dict[str, Any] | BadRecord]]:
        """(offset, bytes, record) of every record."""

    @abstractmethod
    def decode(self, raw: bytes, where: str, header: Any) -> dict[str, Any]:
        """The record that some bytes are."""


def text_blocks(
    path: str, codec: str | None = None, taken: Callable[[bytes], None] | None = None
) -> Iterator[bytes]:
    """The text of a file, block by block.

    Args:
        taken: called with the file's own bytes.

    Raises:
        SourceError: the file cannot be read.
        BrokenFile: it is not compressed as its name says, or it is cut.
    """
    blocks = file_blocks(path, size=_INPUT if codec else BLOCK)
    if taken is not None:
        blocks = _observed(blocks, taken)
    return _UNPACKED[codec](blocks) if codec else blocks


def _observed(blocks: Iterator[bytes], taken: Callable[[bytes], Any]) -> Iterator[bytes]:
    for block in blocks:
        taken(block)
        yield block


def _gunzipped(packed: Iterator[bytes]) -> Iterator[bytes]:
    """The text of a gzip file; members one after the other are one stream."""
    inflate: Any = zlib.decompressobj(31)
    for rest in itertools.chain(packed, [b""]):  # at the end, what the decoder still holds
        while True:
            if inflate.eof:
                rest = rest.lstrip(b"\0")  # padding
                if not rest:
                    break
                inflate = zlib.decompressobj(31)
            try:
                block: bytes = inflate.decompress(rest, BLOCK)
            except zlib.error as error:
                raise BrokenFile(f"the gzip stream is broken ({error}): restore the file") from None
            rest = inflate.unconsumed_tail or inflate.unused_data
            if block:
                yield block
            elif not rest:
                break
    if not inflate.eof:
        raise BrokenFile("the gzip stream is cut: restore the file")


class _File(Stream):
    """Blocks as a file that Arrow reads."""

    closed = False
    read = Stream.take

    def close(self) -> None:
        """There is nothing to close: its blocks know when they end."""


def _unzstd(packed: Iterator[bytes]) -> Iterator[bytes]:
    """The text of a Zstandard file."""
    file = _File(packed)
    try:
        stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        while block := stream.read(BLOCK):
            yield block
    except (pa.ArrowException, OSError) as error:
        raise BrokenFile(f"the Zstandard stream is broken or cut ({error})") from None
    if not file.at:
        raise BrokenFile("the file is empty: a Zstandard stream has at least a header")


_UNPACKED = {GZIP: _gunzipped, ZSTD: _unzstd}


@contextlib.contextmanager
def unpacked(path: str, codec: str, text: Text) -> Iterator[str]:
    """A file of this machine that begins with the text of a compressed one, for `range_of`; it is
    there for as long as the block.

    Raises:
        SourceError: the file cannot be read, or its text not be kept.
        BrokenFile: it is damaged.
    """
    nbytes, version = file_version(path)
    source = path
    if not urls.is_url(path):
        source = os.path.abspath(path)
        version = f"{version} {os.stat(path).st_ctime_ns}"  # no copy has another file's
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(
                cache.made(
                    source,
                    f"{nbytes} {version} {text.name}",
                    lambda target: _unpack(path, codec, text, target),
                )
            )
        except OSError as error:
            raise SourceError(
                f"cannot unpack {path} into the local cache {cache.folder()}: {error.strerror}; "
                "make room there, or set PACKIDX_CACHE to another folder"
            ) from error
        yield copy


def _unpack(path: str, codec: str, text: Text, target: str) -> None:
    """Write a compressed file's text, and behind it the index of its records."""
    bound = cache.limit()
    entries = array("q")
    with open(target, "wb") as file, local_shard(path) as here:

        def keep(block: bytes) -> None:
            file.write(block)
            if file.tell() > bound:
                raise SourceError(
                    f"{path} holds more than {bound:,} bytes of text, and the local cache must not "
                    "grow over that: set PACKIDX_CACHE_SIZE to more, or unpack the file"
                )

        for offset, raw in text.items(_observed(text_blocks(here, codec), keep), 0, False):
            entries.extend((offset, size_of(raw)))
        entries.append(len(entries) * entries.itemsize)
        entries.tofile(file)


def range_of(copy: str, row: int) -> tuple[int, int] | None:
    """First byte and size of a record in an `unpacked` file; None where it has no such row."""
    end = os.stat(copy).st_size - array("q").itemsize
    nbytes = _integers(copy, end, 1)[0]
    if not 0 <= row < nbytes // _ENTRY:
        return None
    offset, size = _integers(copy, end - nbytes + row * _ENTRY, 2)
    return offset, size


def _integers(path: str, offset: int, number: int) -> array[int]:
    return array("q", storage.read_range(path, offset, number * array("q").itemsize))
