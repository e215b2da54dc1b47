"""JSON Lines: one object a line. The fast path: most data that is worth counting fast is this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.io.storage import reading
from packidx.records.containers.base import (
    BOM,
    MAX_RECORD,
    SMALLER,
    TASK_BYTES,
    TASK_RECORDS,
    BrokenFile,
    Container,
    Cuts,
    Hashing,
    Locator,
    Record,
    RecordRange,
    ShardScan,
    attempted,
    file_blocks,
    file_version,
    local_shard,
    named,
    read_bytes,
)

SCAN_BLOCK = 4 << 20
_SHORT = 16  # bytes of a line: records are longer, so shorter ones are mostly blank
_SHORT_LINES = re.compile(rb"[ \t\r\v\f\n]*\n|[^\n]+\n?")


class Lines(Container):
    """Uncompressed JSON Lines."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing, cuts, number = Hashing(), Cuts(task_bytes, TASK_RECORDS), 0
        cuts.at(0, 0, 0)
        with named(path), local_shard(path, check=True) as here:
            blocks = hashing.observed(file_blocks(here, SCAN_BLOCK))
            for offset, line in whole_lines(blocks):
                cuts.at(offset, number, offset)
                number += bool(line) and not line.isspace()
        ranges = cuts.ranges(hashing.nbytes, number, None)
        return ShardScan(hashing.nbytes, hashing.sha256, number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[Record]:
        start, end = record_range.start, record_range.end
        with local_shard(path) as here:
            lines = read_lines(here, start, end)
            for row, (offset, line) in enumerate(lines, record_range.first_row):
                yield Record(attempted(decode, line), Locator(row, offset, len(line)))

    def read_one(self, path: str, at: Locator) -> Record:
        return Record(decode(read_bytes(path, at)), at)


def read_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every line in a byte range that is not blank.

    `start` is a line's start. The bytes are without the newline (``\\n`` or ``\\r\\n``) and without
    a byte order mark at the start of the file.

    Raises:
        SourceError: the file cannot be read.
    """
    end = file_version(path)[0] if end is None else end
    with reading(path), open(path, "rb", buffering=1 << 20) as file:
        if start == 0 and file.read(len(BOM)) == BOM:
            start = len(BOM)
        file.seek(start)
        for line in file:
            if start >= end:
                return
            if not line.isspace():
                yield start, line.removesuffix(b"\n").removesuffix(b"\r")
            start += len(line)


def filled_lines(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes without newline) of every line that is not blank, as `whole_lines`."""
    for offset, line in whole_lines(blocks):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if line and not line.isspace():
            yield offset, line


def whole_lines(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes with newline) of every line; a byte order mark is not part of the first.

    Blank lines that follow one another may come as one.

    Raises:
        BrokenFile: a line is over `MAX_RECORD`.
    """
    pieces: list[bytes] = []
    at, held, first = 0, 0, True
    for block in blocks:
        if first:
            first = False
            if block.startswith(BOM):
                block, at = block[len(BOM) :], at + len(BOM)
        end = block.find(b"\n") + 1
        if pieces or not end:
            pieces.append(block[: end or len(block)])
            held += len(pieces[-1])
            if held > MAX_RECORD:
                raise BrokenFile(f"the line at byte {at} has over {MAX_RECORD:,} bytes: {SMALLER}")
            if not end:
                continue
            yield at, b"".join(pieces)
            at, block, pieces, held = at + held, block[end:], [], 0
        lines = _split(block)
        last = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for text in lines:
            yield at, text
            at += len(text)
        if last:
            pieces, held = [last], len(last)
    if pieces:
        yield at, b"".join(pieces)


def _split(block: bytes) -> list[bytes]:
    """`block` cut after each newline, and nowhere else, but for blank lines in a row."""
    if block.count(b"\n") > len(block) // _SHORT:
        return _SHORT_LINES.findall(block)
    if b"\r" not in block:
        return block.splitlines(keepends=True)
    lines = [line + b"\n" for line in block.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


_NO_NUMBER = re.compile("-?(NaN|Infinity|nan|inf)|None|True|False")


def decode(line: bytes) -> dict[str, Any]:
    """One line's JSON object.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json`` or ``bad_record`` (JSON, but not an object).
    """
    try:
        return as_object(orjson.loads(line))
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            text = f"byte {wrong.start} is not UTF-8: write the file as UTF-8"
            raise BadRecord("bad_utf8", text) from None
        raise BadRecord("bad_json", _explained(error)) from None


def as_object(value: Any) -> dict[str, Any]:
    """A JSON value that is a record.

    Raises:
        BadRecord: ``bad_record``, it is not an object.
    """
    if not isinstance(value, dict):
        kind = {list: "a list", str: "text", type(None): "null", bool: "a boolean"}
        text = f"the record is {kind.get(type(value), 'a number')}, not an object"
        raise BadRecord("bad_record", text)
    return value


def _explained(error: ValueError) -> str:
    """Return what is wrong with a record that is not JSON, and where."""
    message, at = str(getattr(error, "msg", error)), getattr(error, "pos", None)
    if at is None:
        return message
    wrong = _NO_NUMBER.match(str(getattr(error, "doc", "")), at)
    hint = "" if wrong is None else f"{wrong[0]} is not a JSON value: "
    return f"{hint}{message} at character {at} of the record"
