"""JSON, CSV, TSV and compressed text: converted once, by a stream, into JSON Lines.

A JSON file is an array of records, or an object that holds them: in one list among other members,
as COCO's ``annotations``, or each under its id. What COCO's ``image_id`` stands for is looked up in
its ``images``, the one part of such a file that is held in memory.

The copy is in the local cache (`packidx.io.cache`), for all processes of this machine: a record a
line, a record that cannot be understood as a list of its reason and detail, and behind the lines
where each begins. A row of such a shard has no byte range: whoever reads one finds it in the copy.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import lzma
import os
import re
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.io.files import refuse_open_files
from packidx.records.containers.base import (
    BLOCK,
    BOM,
    MAX_RECORD,
    TASK_BYTES,
    TASK_RECORDS,
    BrokenFile,
    Container,
    Cuts,
    Gathered,
    RawRecord,
    RecordRange,
    ShardScan,
    TooLarge,
    attempted,
    file_hash,
    file_version,
    local_shard,
    named,
    size_of,
    too_few,
)
from packidx.records.containers.lines import decode, filled_lines, whole_lines

CODECS = {"gz": "gzip", "zst": "Zstandard", "bz2": "bzip2", "xz": "xz"}
"""Endings of compressed text, and how that is called."""
HOLDERS = frozenset(
    ("annotations", "data", "dataset", "entries", "examples", "instances", "items")
    + ("questions", "records", "rows", "samples")
)
"""Names under which an object may hold a list of records."""
_BLANK = b" \t\r\n"
_OF_ALL, _SHORT = re.compile("system|instruction|prompt|context"), 32
"""Names of what records may share, and bytes of a member that says less."""
_WIDTH = array("q").itemsize
_OUTSIDE = re.compile(rb'["\[\]{},]')  # what has a meaning outside of a string
_INSIDE = re.compile(rb'["\\]')  # and in one

# The module's limit of 128 KiB a cell is a single one for the process; a chat may be longer.
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))


class Converted(Container):
    """Shards of a kind that is read through a copy in JSON Lines.

    Args:
        kind: with its codec, as ``csv.gz``.
        delimiter: between the cells of a table, which may then be quoted; None is the kind's own.
        max_record: bytes of a record; a larger one is rejected.
    """

    def __init__(
        self, kind: str, delimiter: str | None = None, max_record: int = MAX_RECORD
    ) -> None:
        self._text, _, self._codec = kind.partition(".")
        self._delimiter, self._max_record = delimiter, max_record

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        with local_shard(path, check=True) as here:
            hashing = file_hash(here)
        with self._copy(path, check=True) as copy:
            starts = _starts(copy)
        cuts, number = Cuts(task_bytes, TASK_RECORDS), len(starts) - 1
        for row, start in enumerate(map(int, starts)):
            cuts.at(row, row, start)
        ranges = cuts.ranges(number, number, int(starts[-1]))
        return ShardScan(hashing.nbytes, hashing.sha256, number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        row, end = record_range.first_row, record_range.first_row + record_range.num_records
        with self._copy(path) as copy:
            starts = _starts(copy)
            if end >= len(starts):
                raise too_few(path, len(starts) - 1)
            with open(copy, "rb") as file:
                file.seek(int(starts[row]))
                for number in range(row, end):
                    record = attempted(_decode, file.readline())
                    yield RawRecord(number, None, None, record)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        with self._copy(path) as copy:
            starts = _starts(copy)
            if not 0 <= row < len(starts) - 1:
                raise too_few(path, row)
            start, end = map(int, starts[row : row + 2])
            line = storage.read_range(copy, start, end - start)
        return _decode(line)

    @contextlib.contextmanager
    def _copy(self, path: str, check: bool = False) -> Iterator[str]:
        """The shard as JSON Lines; it is there for as long as the block.

        Raises:
            SourceError: the file cannot be read or is damaged, or the copy cannot be kept.
        """
        nbytes, version = file_version(path)
        source = path
        if not urls.is_url(path):
            source = os.path.abspath(path)
            version = f"{version} {os.stat(path).st_ctime_ns}"  # no copy has another file's
        form = f"{self._text}.{self._codec} {self._delimiter} {self._max_record}"
        with contextlib.ExitStack() as stack, named(path):
            try:
                key = f"{nbytes} {version} {form} JSON Lines"
                made = cache.made(
                    source, key, lambda target: self._convert(path, target), check=check
                )
                copy = stack.enter_context(made)
            except OSError as error:
                refuse_open_files(error)
                raise SourceError(
                    f"cannot convert {path} in the local cache {cache.folder()}: {error.strerror}; "
                    "make room there, or set PACKIDX_CACHE to another folder"
                ) from error
            yield copy

    def _convert(self, path: str, target: str) -> None:
        """Write a shard's records as lines, and behind them where each begins."""
        version = file_version(path)
        bound, starts = cache.limit(), array("q", [0])
        with open(target, "wb") as file, local_shard(path) as here:
            for line in self._lines(lambda: text_blocks(here, self._codec)):
                file.write(line + b"\n")
                starts.append(starts[-1] + len(line) + 1)
                if starts[-1] > bound:
                    raise SourceError(
                        f"{path} holds more than {bound:,} bytes of text, and the local cache must "
                        "not grow over that: set PACKIDX_CACHE_SIZE to more, or convert the file "
                        "to JSON Lines"
                    )
            starts.append(len(starts))
            starts.tofile(file)
        if urls.is_url(path) and file_version(path) != version:
            raise SourceError(f"{path} was replaced while it was read: start again")

    def _lines(self, opened: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """The lines of a shard whose text `opened` gives, as often as it is called."""
        if self._text in ("csv", "tsv"):
            quoted = self._text == "csv" or self._delimiter is not None
            delimiter = self._delimiter or ("," if quoted else "\t")
            rows = _rows(opened(), delimiter, quoted, self._max_record)
            yield from map(_line, _tables_records(rows))
            return
        if self._text == "json":
            holder, images = _held_in(_members(opened(), self._max_record))
            items = _records(_members(opened(), self._max_record), holder, images)
        else:
            items = (line for _, line in filled_lines(opened(), 0, False, self._max_record))
        for raw in items:
            record = attempted(decode, raw) if isinstance(raw, bytes) else raw
            if isinstance(raw, bytes) and isinstance(record, dict) and b"\n" not in raw:
                yield raw
            else:
                yield _line(record)


def _line(record: dict[str, Any] | BadRecord) -> bytes:
    """A record, or why there is none, as a line of the copy."""
    if isinstance(record, BadRecord):
        return orjson.dumps([record.reason, record.detail])
    return orjson.dumps(record)


def _decode(line: bytes) -> dict[str, Any]:
    """The record of a line of the copy.

    Raises:
        BadRecord: there is none.
    """
    record = orjson.loads(line)
    if isinstance(record, list):
        raise BadRecord(*record)
    return dict(record)


def _starts(copy: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where each line of a copy begins, and the last one ends."""
    end = os.stat(copy).st_size - _WIDTH
    number = array("q", storage.read_range(copy, end, _WIDTH))[0]
    return np.memmap(copy, np.int64, "r", end - number * _WIDTH, (number,))


def text_blocks(path: str, codec: str) -> Iterator[bytes]:
    """The text of a file of this machine, block by block.

    Raises:
        SourceError: the file cannot be read.
        BrokenFile: it is not compressed as its name says, or it is cut.
    """
    what = CODECS.get(codec)
    with storage.reading(path), open(path, "rb", opener=storage.open_regular) as packed:
        if what is not None and not os.fstat(packed.fileno()).st_size:
            raise BrokenFile(f"the {what} stream is cut: the file is empty")
        try:
            file: Any = packed
            if codec:
                file = _OPENERS[codec](packed)
            while block := file.read(BLOCK):
                yield block
        except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, OSError) as error:
            if what is None:
                raise
            text = f"the {what} stream is broken or cut ({error}): restore the file"
            raise BrokenFile(text) from None


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}


# -- JSON ------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """An element of a list, or a member of the object that a file is."""

    key: str
    """Its name, or that of the list it is in; empty in an array."""
    is_item: bool
    """Whether it is in a list."""
    raw: bytes
    """Its text, or a `TooLarge`."""


def _members(blocks: Iterator[bytes], max_record: int) -> Iterator[_Member]:
    """What an array holds, blank elements (``[1,,2]``) included; or the members of an object, those
    that are lists element by element.

    Raises:
        BrokenFile: there is neither, it does not end, or something follows it.
    """
    element = Gathered(max_record)
    depth, within, number = 0, 1, 0  # commas at depth `within` stand between what is given
    is_string, is_object, key = False, False, ""
    at = 0  # in the block; behind its end, where that is an escape
    for block in blocks:
        start = 0
        if not depth:
            block = block.removeprefix(BOM).lstrip(_BLANK)
            if block and block[:1] not in (b"[", b"{"):
                break
        while at < len(block):
            mark = (_INSIDE if is_string else _OUTSIDE).search(block, at)
            if mark is None:
                at = len(block)
                break
            at, character = mark.end(), mark[0]
            if character == b"\\":
                at += 1
            elif character == b'"':
                is_string = not is_string
            elif character in b"[{":
                depth += 1
                if depth == 1:
                    start, is_object = at, character == b"{"
                elif depth == 2 and within == 1 and is_object and character == b"[":
                    element.add(block[start : at - 1])
                    key, start, within, number = _key(element.take() + b"0"), at, 2, 0
            elif depth > within:
                depth -= character != b","
            else:
                element.add(block[start : at - 1])
                raw, start, is_item = element.take(), at, within == 2 or not is_object
                if raw.strip(_BLANK) or (is_item and (number or character == b",")):
                    yield _Member(key if is_item else _key(raw), is_item, raw)
                number += 1
                if character != b",":
                    depth, within, key = depth - 1, 1, ""
                if not depth:
                    _check_rest(block[at:], blocks)
                    return
        element.add(block[start:])
        at -= len(block)
    if not depth:
        raise BrokenFile("there is no JSON array or object in it: its first character must be [")
    raise BrokenFile(
        f"the JSON array is cut: it ends inside element {number}; restore the file, or close the "
        "array behind its last whole element"
    )


def _key(raw: bytes) -> str:
    """The name of an object's member, of which this is the text."""
    if isinstance(raw, TooLarge):
        return ""
    try:
        return str(next(iter(orjson.loads(b"{" + raw + b"}"))))
    except (ValueError, StopIteration):
        raise BrokenFile(
            f"it is not JSON: {raw.strip()[:64]!r} is not a member of an object"
        ) from None


def _check_rest(rest: bytes, blocks: Iterator[bytes]) -> None:
    for block in (rest, *([] if rest.strip(_BLANK) else blocks)):
        if block.strip(_BLANK):
            raise BrokenFile(
                "something follows the end of the JSON array or object: a .json file holds one of "
                "these, or one object a line"
            )


def _held_in(members: Iterator[_Member]) -> tuple[str, dict[Any, Any]]:
    """The name of the list that has a file's records, empty of an array or of records by id; and
    the names of COCO's images by their ids.

    Raises:
        BrokenFile: there are several such lists, or only lists of other names.
    """
    lists, images, above = set[str](), dict[Any, Any](), None
    for member in members:
        if member.is_item and not member.key:
            return "", {}
        lists |= {member.key} if member.is_item else set()
        if not member.is_item and _OF_ALL.search(member.key) and len(member.raw) > _SHORT:
            above = member.key
        if member.is_item and member.key == "images":
            image = attempted(decode, member.raw)
            if isinstance(image, dict) and isinstance(ident := image.get("id"), int | str):
                images[ident] = image.get("file_name")
    holders = lists & HOLDERS
    if holders and above is not None:
        raise BrokenFile(f"{above!r} stands above its records: put it into each of them")
    if len(holders) == 1 or not lists:
        return "".join(holders), images
    raise BrokenFile(
        f"it is an object with lists of records in {', '.join(sorted(holders or lists))}: write "
        "the one that is meant as a file of its own"
    )


def _records(
    members: Iterator[_Member], holder: str, images: Mapping[Any, Any]
) -> Iterator[bytes | dict[str, Any] | BadRecord]:
    """The records among members, as they stand or with what was looked up for them."""
    for key, is_item, raw in members:
        if is_item and key == holder:
            record = attempted(_with_image, raw, images) if images else raw
            yield raw.strip(_BLANK) if record is raw and not isinstance(raw, TooLarge) else record
        elif not is_item and not holder:
            yield attempted(_of_id, raw)


def _with_image(raw: bytes, images: Mapping[Any, Any]) -> dict[str, Any]:
    """A record of COCO with the name of its image's file."""
    record = decode(raw)
    ident = record.get("image_id")
    if ident is None or record.get("file_name") is not None:
        return record
    if not isinstance(ident, int | str) or images.get(ident) is None:
        raise BadRecord("bad_media", f"the record's image_id {ident!r:.80} is not among 'images'")
    return {**record, "file_name": images[ident]}


def _of_id(raw: bytes) -> dict[str, Any]:
    """A record that stands under its id."""
    if isinstance(raw, TooLarge):
        return decode(raw)
    [(ident, record)] = decode(b"{" + raw + b"}").items()
    if not isinstance(record, dict):
        raise BadRecord("bad_record", f"what stands under {ident!r:.80} is not an object")
    return {"id": ident, **record}


# -- tables ----------------------------------------------------------------------------------------

_Cells = list[str] | BadRecord
"""Of a row, a character a byte, or why there are none."""


def _tables_records(rows: Iterator[_Cells]) -> Iterator[dict[str, Any] | BadRecord]:
    """The records of a table whose first row names the columns: cells are text, and none is empty.

    Raises:
        BrokenFile: there is no header, or its names are empty or not unique.
    """
    header = next(rows, None)
    if header is None:
        raise BrokenFile("it is empty: its first line must name the columns")
    try:
        names = _texts(header)
    except BadRecord as error:
        raise BrokenFile(f"its first line has no column names: {error.detail}") from None
    if "" in names or len(set(names)) < len(names):
        raise BrokenFile(
            f"its first line must give every column a name of its own, not {names!r:.200}"
        )
    for cells in rows:
        yield attempted(_record, cells, names)


def _record(cells: _Cells, names: list[str]) -> dict[str, Any]:
    texts = _texts(cells)
    if len(texts) != len(names):
        raise BadRecord("bad_row", f"the row has {len(texts)} cells for {len(names)} columns")
    return {name: text for name, text in zip(names, texts, strict=True) if text != ""}


def _texts(cells: _Cells) -> list[str]:
    if isinstance(cells, BadRecord):
        raise cells
    try:
        return [cell if cell.isascii() else cell.encode("latin-1").decode() for cell in cells]
    except UnicodeDecodeError:
        raise BadRecord("bad_utf8", "a cell is not UTF-8") from None


def _rows(
    blocks: Iterator[bytes], delimiter: str, quoted: bool, max_record: int
) -> Iterator[_Cells]:
    """The cells of every row that is not blank; a quoted cell may take several lines.

    Raises:
        BrokenFile: a row, or a quote that is not closed, takes more than a record may have.
    """
    taken: list[bytes] = []
    start = 0

    def texts() -> Iterator[str]:
        nonlocal start
        size = 0
        for offset, line in whole_lines(blocks, 0, False, max_record):
            if not taken:
                start, size = offset, 0
            size += size_of(line)
            if size > max_record or isinstance(line, TooLarge):
                raise BrokenFile(
                    f"the row at byte {start} takes {size:,} bytes: close its quote, restore the "
                    "file, or write its media to files"
                )
            taken.append(line)
            yield line.decode("latin-1")  # any bytes will do to find the quotes

    if not quoted:
        for text in texts():
            if not taken.pop().isspace():
                yield text.removesuffix("\n").removesuffix("\r").split(delimiter)
        return
    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        cells: _Cells
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error) and len(taken) > 1:
                raise BrokenFile(
                    f"a quote in the row at byte {start} is not closed, and takes all of the last "
                    f"{len(taken)} lines: close it, or double quotes that mean themselves"
                ) from None
            cells = BadRecord("bad_row", f"the row's quotes are wrong: {error}")
        is_blank = b"".join(taken).isspace()
        taken.clear()
        if cells and not is_blank:
            yield cells
