"""Text with records in it, rewritten: what stands between the records is copied byte for byte."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import ShardContext
from packidx.precompute.in_place import Cells, set_keys
from packidx.precompute.slices import ShardSlice, SliceTotals, changed, counted
from packidx.precompute.values import Values, names_of
from packidx.records.containers.array import JsonArray
from packidx.records.containers.base import BOM, BrokenFile
from packidx.records.containers.blocks import TooLarge, file_blocks, local_shard, size_of
from packidx.records.containers.compressed import GZIP, text_blocks
from packidx.records.containers.delimited import Delimited
from packidx.records.containers.lines import JsonLines

Rewrite = Callable[[bytes, Values | BadRecord], bytes]
"""A record's bytes and what it is given → its new bytes."""

_GZIP_LEVEL = 6


class Tape:
    """Blocks, from offset `at` on, on their way to whoever cuts them into records; kept until they
    are written."""

    def __init__(self, blocks: Iterable[bytes], at: int) -> None:
        self._blocks = iter(blocks)
        self._kept = bytearray()
        self.at = at

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._kept += block
            yield block

    def take(self, end: int) -> bytes:
        """The bytes from where it stands to the offset `end`, all of which have been read."""
        data = bytes(self._kept[: end - self.at])
        del self._kept[: end - self.at]
        self.at = end
        return data

    def rest(self) -> Iterator[bytes]:
        """All that is left, read or not."""
        yield bytes(self._kept)
        yield from self._blocks

    def lead(self, mark: bytes) -> bytes:
        """`mark` if the bytes begin with it, which are then those behind it; call this first."""
        head = b""
        while len(head) < len(mark) and (block := next(self._blocks, b"")):
            head += block
        own = mark if head.startswith(mark) else b""
        self.at += len(own)
        self._blocks = itertools.chain([head[len(own) :]], self._blocks)
        return own


def rewrite_text(shard_slice: ShardSlice, counter: RecordCounter, path: str) -> SliceTotals:
    """Write a slice of a shard of text to `path`, with what its records are given.

    Raises:
        SourceError: the shard cannot be read, or is no longer what was scanned.
    """
    with local_shard(shard_slice.shard.path) as copy:
        here = replace(shard_slice, shard=replace(shard_slice.shard, path=copy))
        return _rewrite_slice(here, counter, path)


def _rewrite_slice(shard_slice: ShardSlice, counter: RecordCounter, path: str) -> SliceTotals:
    shard = shard_slice.shard
    kind, _, codec = shard.container.partition(".")
    blocks = (
        text_blocks(shard.path, codec)
        if codec
        else file_blocks(shard.path, shard_slice.start, shard_slice.end)
    )
    tape = Tape(blocks, shard_slice.start)
    with _opened(path, codec) as out:
        try:
            if kind in ("csv", "tsv"):
                rewrite, items = _table(tape, shard_slice, kind, out.write)
            else:
                rewrite = _object_rewriter(shard)
                text = JsonLines() if kind == "jsonl" else JsonArray()
                items = text.items(iter(tape), shard_slice.start, shard_slice.start > 0)
            totals = _rewrite(shard_slice, counter, tape, items, rewrite, out.write)
            for block in tape.rest():
                out.write(block)
        except BrokenFile as error:
            raise SourceError(f"{shard.path}: {error}") from None
    return totals


def _rewrite(
    shard_slice: ShardSlice,
    counter: RecordCounter,
    tape: Tape,
    items: Iterator[tuple[int, bytes]],
    rewrite: Rewrite,
    write: Callable[[bytes], Any],
) -> SliceTotals:
    totals = SliceTotals()
    starts = itertools.islice(items, shard_slice.record_range.num_records)
    for record, value in counted(shard_slice, counter):
        start, old = next(starts, (-1, b""))
        if start < 0 or record.offset not in (None, start):
            raise changed(shard_slice)
        write(tape.take(start))
        new = tape.take(start + size_of(old))
        if not isinstance(old, TooLarge):
            try:
                new = rewrite(old, value)
            except RecursionError as error:
                value = BadRecord("bad_record", f"the record is too large: {type(error).__name__}")
                new = rewrite(old, value)
        write(new)
        totals.add(value)
    return totals


def _object_rewriter(shard: ShardContext) -> Rewrite:
    tokens, meta = names_of(shard)

    def rewrite(raw: bytes, value: Values | BadRecord) -> bytes:
        if isinstance(value, BadRecord):
            return raw
        given: dict[str, Any] = {tokens: value.text_tokens}
        if value.meta is not None:
            given[meta] = value.meta
        return set_keys(raw, given)

    return rewrite


def _table(
    tape: Tape, shard_slice: ShardSlice, kind: str, write: Callable[[bytes], Any]
) -> tuple[Rewrite, Iterator[tuple[int, bytes]]]:
    """A table's rewriter and the rows of this slice; its header is written first, if it is here."""
    shard = shard_slice.shard
    delimiter = shard.layout.delimiter or ("," if kind == "csv" else "\t")
    quoted = kind == "csv" or shard.layout.delimiter is not None
    text = Delimited(delimiter, quoted=quoted)
    codec = shard.container.partition(".")[2]
    header = text.header(text_blocks(shard.path, codec))
    cells = Cells(header, names_of(shard), delimiter, quoted)
    if shard_slice.start == 0:
        write(tape.lead(BOM))
    items = text.items(iter(tape), tape.at, True)
    if shard_slice.start == 0:
        offset, raw = next(items)
        write(tape.take(offset))
        tape.take(offset + len(raw))
        write(cells.header(raw))

    def rewrite(raw: bytes, value: Values | BadRecord) -> bytes:
        if isinstance(value, BadRecord):
            return cells.row(raw, (None, None))
        meta = None if value.meta is None else orjson.dumps(value.meta).decode()
        return cells.row(raw, (str(value.text_tokens), meta))

    return rewrite, items


@contextmanager
def _opened(path: str, codec: str) -> Iterator[Any]:
    """A file to write, compressed as its source is; a gzip header without name and time."""
    with open(path, "wb", buffering=1 << 20) as file:
        if codec == GZIP:
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as out:
                yield out
        elif codec:
            with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as out:
                yield out
        else:
            yield file
