"""JSON, CSV, TSV and compressed text: converted once, by a stream, into JSON Lines.

A JSON file is an array of records, or an object that holds them in one list among other members.

The copy is in the local cache (`packidx.io.cache`), for all processes of this machine: a record a
line, a record that cannot be understood as a list of its reason and detail, and behind the lines
where each begins. A row of such a shard has no byte range: whoever reads one finds it in the copy.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import itertools
import math
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.io.copies import content_of
from packidx.io.files import refuse_open_files
from packidx.records.containers.base import (
    BLOCK,
    BOM,
    MAX_RECORD,
    SMALLER,
    TASK_BYTES,
    TASK_RECORDS,
    BrokenFile,
    Container,
    Cuts,
    Locator,
    Record,
    RecordRange,
    ShardScan,
    attempted,
    file_version,
    local_shard,
    named,
    too_few,
)
from packidx.records.containers.lines import as_object, decode, filled_lines, whole_lines

CODECS = {"gz": "gzip", "zst": "Zstandard"}
"""Endings of compressed text, and how that is called."""
HOLDERS = frozenset(
    ("annotations", "data", "dataset", "entries", "examples", "instances", "items")
    + ("questions", "records", "rows", "samples")
)
"""Names under which an object may hold a list of records."""
_BLANK = b" \t\r\n"
_OF_ALL = re.compile(
    "system|instruction|prompt|context|tool|function|image|video|audio|media|root|folder|dir|path"
)
"""Names of what records may share."""
_WORD = re.compile(r"[^\s/]{0,32}")
_ABOUT = ("info", "license", "licenses")
"""Members of an object that are about the file, as COCO and VQA have them."""
_WIDTH = array("q").itemsize
_LONE = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])"  # half a character
)
_PAIR, _TAIL = 12, 64  # bytes of both halves, and of what is searched twice

# The module's limit of 128 KiB a cell is a single one for the process; a chat may be longer.
csv.field_size_limit(MAX_RECORD)


class Converted(Container):
    """Shards of a kind that is read through a copy in JSON Lines.

    Args:
        kind: with its codec, as ``csv.gz``.
        delimiter: between the cells of a table, which may then be quoted; None is the kind's own.
        ignore: members of an object that are as if they were not there.
    """

    def __init__(
        self, kind: str, delimiter: str | None = None, ignore: tuple[str, ...] = ()
    ) -> None:
        self._text, _, self._codec = kind.partition(".")
        self._delimiter, self._ignore = delimiter, ignore if self._text == "json" else ()

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        with local_shard(path, check=True) as here, storage.reading(here):
            content = content_of(here)
        starts = _starts(self._copy(path, check=True))
        cuts, number = Cuts(task_bytes, TASK_RECORDS), len(starts) - 1
        for row, start in enumerate(map(int, starts)):
            cuts.at(row, row, start)
        ranges = cuts.ranges(number, number, int(starts[-1]))
        return ShardScan(content.nbytes, content.sha256, number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[Record]:
        row, end = record_range.first_row, record_range.first_row + record_range.num_records
        copy = self._copy(path)
        starts = _starts(copy)
        if end >= len(starts):
            raise too_few(path, len(starts) - 1)
        with open(copy, "rb") as file:
            file.seek(int(starts[row]))
            for number in range(row, end):
                yield Record(attempted(_decode, file.readline()), Locator(number))

    def read_one(self, path: str, at: Locator) -> Record:
        copy, row = self._copy(path), at.row
        starts = _starts(copy)
        if not 0 <= row < len(starts) - 1:
            raise too_few(path, row)
        start, end = map(int, starts[row : row + 2])
        return Record(_decode(storage.read_range(copy, start, end - start)), at)

    def _copy(self, path: str, check: bool = False) -> str:
        """Return the path of the shard as JSON Lines.

        Raises:
            SourceError: the file cannot be read or is damaged, or the copy cannot be kept.
        """
        nbytes, version = file_version(path)
        source = path
        if not urls.is_url(path):
            source = os.path.abspath(path)
            version = f"{version} {os.stat(path).st_ctime_ns}"  # no copy has another file's
        form = f"{self._text}.{self._codec} {self._delimiter} {self._ignore}"
        key = f"{nbytes} {version} {form} JSON Lines, 3"
        try:
            with named(path):
                return cache.made(source, key, functools.partial(self._convert, path), check=check)
        except OSError as error:
            refuse_open_files(error)
            raise SourceError(
                f"cannot convert {path} in the local cache {cache.folder()}: {error.strerror}; "
                "make room there, or set PACKIDX_CACHE to another folder"
            ) from error

    def _convert(self, path: str, target: str) -> None:
        """Write a shard's records as lines, and behind them where each begins."""
        starts = array("q", [0])
        with open(target, "wb") as file, local_shard(path) as here:
            for line in self._lines(lambda: text_blocks(here, self._codec)):
                file.write(line + b"\n")
                starts.append(starts[-1] + len(line) + 1)
            starts.append(len(starts))
            starts.tofile(file)

    def _lines(self, opened: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """The lines of a shard whose text `opened` gives, as often as it is called."""
        if self._text in ("csv", "tsv"):
            quoted = self._text == "csv" or self._delimiter is not None
            delimiter = self._delimiter or ("," if quoted else "\t")
            yield from map(_line, _tables_records(_rows(opened(), delimiter, quoted)))
        elif self._text == "json":
            yield from map(_line, _records(opened, self._ignore))
        else:
            for _, line in filled_lines(opened()):
                record = attempted(decode, line)
                yield _line(record) if isinstance(record, BadRecord) else line


def _line(record: Any) -> bytes:
    """A record, or why there is none, as a line of the copy."""
    try:
        if not isinstance(record, BadRecord):
            return orjson.dumps(as_object(record), default=_float)
    except BadRecord as error:
        record = error
    except TypeError as error:  # half a character, an integer of over 64 bits, or nested too deeply
        reason = "bad_utf8" if "UTF-8" in str(error) else "bad_json"
        record = BadRecord(reason, f"the record cannot be kept: {error}")
    return orjson.dumps([record.reason, record.detail])


def _float(number: Any) -> float:
    """The float of a `decimal.Decimal`, as `json` reads it."""
    if math.isinf(value := float(number)):
        raise TypeError(f"{number} is no finite number")
    return value


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
        except (EOFError, zlib.error, pa.ArrowException, OSError) as error:
            if what is None:
                raise
            text = f"the {what} stream is broken or cut ({error}): restore the file"
            raise BrokenFile(text) from None


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"),
}


# -- JSON ------------------------------------------------------------------------------------------


def _records(opened: Callable[[], Iterator[bytes]], ignore: tuple[str, ...] = ()) -> Iterator[Any]:
    """The elements of an array, or of the one list of records that an object holds.

    Raises:
        BrokenFile: there is none, or the file is not JSON.
    """
    blocks = _stripped(opened())
    first = next(blocks, b"")
    if first[:1] not in (b"[", b"{"):
        raise BrokenFile("there is no JSON array or object in it: its first character must be [")
    place = "item" if first.startswith(b"[") else f"{_holder(_stripped(opened()), ignore)}.item"
    whole = _without_halves(itertools.chain([first], blocks))
    yield from _parsed(whole, "items_coro", place)


def _stripped(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of a text without its byte order mark and the blank bytes before it."""
    for block in blocks:
        if begun := block.removeprefix(BOM).lstrip(_BLANK):
            yield begun
            yield from blocks


def _without_halves(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """These blocks, which have no surrogate alone: yajl would read a question mark.

    Raises:
        BrokenFile: there is one.
    """
    before = b""
    for block in itertools.chain(blocks, [b""]):
        text = before + block
        for lone in _LONE.finditer(text) if b"\\u" in text else ():
            is_whole = not block or lone.end() + _PAIR // 2 <= len(text)
            if is_whole and (lone.start() or not before):  # what begins there was searched before
                raise BrokenFile(f"{lone[1].decode()} is half a character: write the file anew")
        before = text[-_TAIL:]
        yield block


def _parsed(blocks: Iterator[bytes], parser: str, *where: str) -> Iterator[Any]:
    """Yield what a parser of `ijson`, given by name, finds in a text.

    Raises:
        BrokenFile: the text is not JSON, or an element of it is too large to be held.
    """
    import ijson  # readers of packs need no parser of JSON arrays

    found, number, since = ijson.sendable_list(), 0, 0
    running = getattr(ijson.get_backend("yajl2_c"), parser)(found, *where)
    for block in itertools.chain(blocks, [b""]):
        try:
            if block:
                running.send(block)
            else:
                running.close()
        except (ijson.JSONError, ValueError) as error:
            why, behind = " ".join(str(error).split())[:120], f"element {number + len(found)}"
            text = f"it is not JSON, or cut, behind {behind} ({why}): restore the file, or write "
            text += "one record a line"
            if isinstance(error, UnicodeDecodeError) or "UTF8" in why:
                what = (
                    "is not UTF-8" if "UTF8" in why else "has half a character (\\udc00 to \\udfff)"
                )
                text = f"a text behind {behind} {what}: write the file anew"
            raise BrokenFile(text) from None
        since = 0 if found else since + len(block)
        if since > MAX_RECORD:
            raise BrokenFile(f"element {number} has over {MAX_RECORD >> 20} MiB: {SMALLER}")
        number += len(found)
        yield from found
        del found[:]


def _holder(blocks: Iterator[bytes], ignore: tuple[str, ...]) -> str:
    """The name of the one list that has an object's records.

    Raises:
        BrokenFile: there is none, or several; or another member says something of the records.
    """
    keys, lists, said = set[str](), set[str](), dict[str, None]()
    depth, key = 0, ""
    for event, value in _parsed(blocks, "basic_parse_coro"):
        if event == "map_key" and depth == 1:
            if value in keys:
                raise BrokenFile(f"it has {value!r} twice: keep one")
            keys.add(key := value)
        elif event == "start_array" and depth == 1:
            lists.add(key)
        elif not event.startswith("end_") and (depth > 1 or _is_said(event, key, value)):
            said[key] = None
        depth += event.startswith("start_") - event.startswith("end_")
    holders = lists & HOLDERS
    if len(holders) != 1 or "images" in lists:
        raise BrokenFile(
            f"it is an object with lists in {', '.join(sorted(lists)) or 'no member'}: records are "
            "one list of whole ones, and none refers to another list (docs/data.md joins COCO's)"
        )
    [holder] = holders
    for name in (each for each in said if each not in (holder, *_ABOUT, *ignore)):
        raise BrokenFile(
            f"{name!r} stands above its records: put it into each of them, or --ignore {name}"
        )
    if f"{holder}.item" in keys:
        raise BrokenFile(f"it has {holder!r} and '{holder}.item', which cannot be told apart")
    return holder


def _is_said(event: str, key: str, value: Any) -> bool:
    """Return whether a member above records is a text that may be of them, and no version, say."""
    if event != "string" or not value:
        return False
    return _OF_ALL.search(key.lower()) is not None or not _WORD.fullmatch(value)


# -- tables ----------------------------------------------------------------------------------------

_Cells = list[str] | BadRecord
"""Cells of a row as text, bytes that are not UTF-8 as surrogates; or a BadRecord."""


def _tables_records(rows: Iterator[_Cells]) -> Iterator[dict[str, Any] | BadRecord]:
    """The records of a table whose first row names the columns: cells are text, and none is empty.

    Raises:
        BrokenFile: there is no header, or its names are empty or not unique.
    """
    names = next(rows, None)
    if names is None:
        raise BrokenFile("it is empty: its first line must name the columns")
    if isinstance(names, BadRecord) or not _is_utf8(names):
        raise BrokenFile("its first line has no column names in UTF-8")
    if "" in names or len(set(names)) < len(names):
        raise BrokenFile(
            f"its first line must give every column a name of its own, not {names!r:.200}"
        )
    for cells in rows:
        if isinstance(cells, BadRecord):
            yield cells
        elif len(cells) != len(names):
            text = f"the row has {len(cells)} cells for {len(names)} columns"
            yield BadRecord("bad_row", text)
        else:
            yield {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}


def _is_utf8(texts: list[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def _rows(blocks: Iterator[bytes], delimiter: str, quoted: bool) -> Iterator[_Cells]:
    """The cells of every row that is not blank; a quoted cell may take several lines.

    Raises:
        BrokenFile: a quote is not closed, or a row takes more than a record may have.
    """
    texts = (text.decode("utf-8", "surrogateescape") for _, text in whole_lines(blocks))
    lines = (line for text in texts for line in io.StringIO(text, newline="\n"))
    if not quoted:
        for line in lines:
            if not line.isspace():
                yield line.removesuffix("\n").removesuffix("\r").split(delimiter)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error) or "limit" in str(error):
                text = f"a quote in the last lines up to line {reader.line_num} is not closed"
                raise BrokenFile(f"{text} ({error}): close it, or restore the file") from None
            yield BadRecord("bad_row", f"line {reader.line_num}: {error}")
        else:
            if len(cells) > 1 or (cells and not cells[0].isspace()):
                yield cells
