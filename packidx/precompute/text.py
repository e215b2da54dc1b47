"""Text with records in it, rewritten: what stands between the records is copied byte for byte."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.estimate.counter import RecordCounter
from packidx.estimate.examine import ShardContext
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


# Numbers stay text: only where they end is asked, and of no size is one too long for that.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_BLANK = " \t\r\n"
_QUOTE = b'"'
_ENDS = b"\r\n"


def set_keys(line: bytes, values: Mapping[str, Any]) -> bytes:
    """A JSON object's bytes with these keys set: replaced where they are, else at the end.

    A key that stands there several times is replaced each time. So whichever a reader takes, it
    takes the new value; a key with escapes in it is found only beside one without, but the new one
    then stands behind it, where readers look.

    Args:
        line: one JSON object that has been decoded before, possibly with blanks around it.
        values: key → JSON value.

    Raises:
        RecursionError: it is nested too deeply to find a key in it.
    """
    absent = dict(values)
    if any(key.encode() in line for key in values):
        line, absent = _replace(line.decode(), values)
    if not absent:
        return line
    close = line.rindex(b"}")
    body = line[:close].rstrip()
    written = orjson.dumps(absent)[1:-1]
    comma = b"" if body.endswith(b"{") else b","
    gap = b" " if b'": ' in body[:200] and comma else b""  # as json.dumps writes it
    return b"".join((body, comma, gap, written, line[len(body) :]))


def _replace(text: str, values: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """`text` with the values of the keys that it has, and those that it has not."""
    absent = dict(values)
    pieces: list[str] = []
    at = 0
    for key, start, end in _members(text):
        if key in values:
            pieces += (text[at:start], orjson.dumps(values[key]).decode())
            at = end
            absent.pop(key, None)
    return "".join((*pieces, text[at:])).encode(), absent


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, start and end of its value) of each member of the outermost object."""
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at


class Cells:
    """Two or more named cells of each row of one table; those that it lacks become its last."""

    def __init__(
        self, header: Sequence[str], names: Sequence[str], delimiter: str, quoted: bool = True
    ) -> None:
        self._num_columns = len(header)
        self._delimiter, self._quoted = delimiter.encode(), quoted
        self._names = names
        self._places = [header.index(name) if name in header else None for name in names]

    def header(self, raw: bytes) -> bytes:
        """The header's bytes with the names of new columns."""
        new = [name for name, at in zip(self._names, self._places, strict=True) if at is None]
        return self._with_end(raw, new)

    def row(self, raw: bytes, texts: Sequence[str | None]) -> bytes:
        """A row's bytes with its cells set.

        Args:
            raw: a row without its newline.
            texts: one per name; None leaves a cell as it is, or a new one empty.

        Returns:
            `raw` itself where it has not as many cells as the table has columns.
        """
        spans = cell_spans(raw, self._delimiter, self._quoted)
        if len(spans) != self._num_columns:
            return raw
        pieces: list[bytes] = []
        done = 0
        chosen = [
            (*spans[at], text)
            for at, text in zip(self._places, texts, strict=True)
            if at is not None and text is not None
        ]
        for start, end, text in sorted(chosen):
            pieces += (raw[done:start], self._cell(text))
            done = end
        new = [text or "" for at, text in zip(self._places, texts, strict=True) if at is None]
        return self._with_end(b"".join((*pieces, raw[done:])), new)

    def _with_end(self, raw: bytes, texts: Sequence[str]) -> bytes:
        body = raw.rstrip(_ENDS)  # a quoted cell ends in a quote
        cells = (self._delimiter + self._cell(text) for text in texts)
        return b"".join((body, *cells, raw[len(body) :]))

    def _cell(self, text: str) -> bytes:
        cell = text.encode()
        if self._quoted and any(
            special in cell for special in (self._delimiter, _QUOTE, b"\n", b"\r")
        ):
            return _QUOTE + cell.replace(_QUOTE, _QUOTE * 2) + _QUOTE
        return cell


def cell_spans(raw: bytes, delimiter: bytes, quoted: bool = True) -> list[tuple[int, int]]:
    """(start, end) of each cell of a row, quotes included; none where a quote is not closed."""
    body = len(raw.rstrip(_ENDS))
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        start, at = at, _cell_end(raw, at, body, delimiter, quoted)
        if at < 0 or (at < body and raw[at : at + 1] != delimiter):
            return []
        spans.append((start, at))
        if at == body:
            return spans
        at += 1


def _cell_end(raw: bytes, at: int, body: int, delimiter: bytes, quoted: bool) -> int:
    if not quoted or raw[at : at + 1] != _QUOTE:
        end = raw.find(delimiter, at, body)
        return body if end < 0 else end
    at += 1
    while (close := raw.find(_QUOTE, at, body)) >= 0:
        if raw[close + 1 : close + 2] != _QUOTE:
            return close + 1
        at = close + 2
    return -1
