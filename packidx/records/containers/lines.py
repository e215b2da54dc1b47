"""Text: JSON Lines, and JSON, CSV, TSV and compressed text, which are converted once.

JSON Lines, one object a line, are the fast path: most data that is worth counting fast is this. Of
the others a copy is made in the local cache (`packidx.io.cache`), for all processes of this
machine: an Arrow file of JSON texts, a record a row, a record that cannot be understood as a list
of its reason and detail. A row of such a shard has no byte range: it is read from the copy.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.format.manifest import RecordRange
from packidx.format.terms import COLUMNS
from packidx.io import cache, storage, urls
from packidx.io.cache import content_of
from packidx.io.files import refuse_open_files
from packidx.records.containers import base
from packidx.records.containers.tables import ARROW
from packidx.records.media.references import name_type

_BOM = b"\xef\xbb\xbf"
SCAN_BLOCK = 4 << 20
_NO_NUMBER = re.compile(rb"\b(NaN|Infinity)\b")
CODECS = {"gz": "gzip", "zst": "zstd"}
"""Endings of compressed text, and what Arrow calls the codec."""
csv.field_size_limit(1 << 28)  # of the process; the module's 128 KiB a cell are less than a chat
_HOLDERS = frozenset(
    ("annotations", "data", "dataset", "entries", "examples", "instances", "items")
    + ("questions", "records", "rows", "samples")
)
"""Names under which an object may hold a list of records."""
_OWN = frozenset(COLUMNS) - {"id"}
"""Names of what a record says: above the list, one word of text is one too many."""
_SCHEMA = pa.schema({"record": pa.binary()})
_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 1024


class Lines(base.Container):
    """Uncompressed JSON Lines."""

    def scan(self, path: str, task_bytes: int = base.TASK_BYTES) -> base.ShardScan:
        hasher, cuts, number = hashlib.sha256(), base.Cuts(task_bytes, base.TASK_RECORDS), 0
        cuts.at(0, 0, 0)
        with base.local_shard(path) as here, open(here, "rb") as file:
            offset = skip_bom(file)
            hasher.update(_BOM[:offset])
            while lines := file.readlines(SCAN_BLOCK):
                hasher.update(b"".join(lines))
                for line in lines:
                    cuts.at(offset, number, offset)
                    number += not line.isspace()
                    offset += len(line)
        ranges = cuts.ranges(offset, number, None)
        return base.ShardScan(offset, hasher.hexdigest(), number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[base.Record]:
        offset, row = record_range.start, record_range.first_row
        with base.local_shard(path) as here, open(here, "rb", buffering=1 << 20) as file:
            offset = offset or skip_bom(file)
            file.seek(offset)
            for line in file:
                if offset >= record_range.end:
                    return
                if not line.isspace():
                    text = line.removesuffix(b"\n").removesuffix(b"\r")
                    yield base.Record(decode_line(text), base.Locator(row, offset, len(text)))
                    row += 1
                offset += len(line)

    def read_one(self, path: str, at: base.Locator) -> base.Record:
        return base.Record(decode_line(base.read_bytes(path, at)), at)


def skip_bom(file: Any) -> int:
    """Read the byte order mark at the start of a file, and return its length."""
    return len(file.read(len(_BOM))) if file.peek(len(_BOM)).startswith(_BOM) else 0


def decode_line(line: bytes) -> dict[str, Any] | BadRecord:
    """Return one line's JSON object, ``NaN`` and ``Infinity`` in it null, or why it is none."""
    try:
        try:
            return as_record(orjson.loads(line))
        except ValueError:
            if _NO_NUMBER.search(line) is None:
                raise
            return as_record(orjson.loads(orjson.dumps(json.loads(line))))
    except (ValueError, TypeError, RecursionError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            return BadRecord("bad_utf8", f"byte {wrong.start} is not UTF-8: write it as UTF-8")
        text = f"{getattr(error, 'msg', error)} at character {getattr(error, 'pos', 0)}"
        return BadRecord("bad_json", f"{text} of the record")


def as_record(value: Any) -> dict[str, Any] | BadRecord:
    """Return a JSON value if it is a record, or why it is none."""
    if isinstance(value, dict | BadRecord):
        return value
    return BadRecord("bad_record", f"the record is {name_type(value)}, not an object")


class Converted(base.Container):
    """Shards of a kind that is read through a copy.

    Args:
        kind: with its codec, as ``csv.gz``.
        delimiter: between the cells of a table, which may then be quoted; None is the kind's own.
    """

    def __init__(self, kind: str, delimiter: str | None = None) -> None:
        self._text, _, self._codec = kind.partition(".")
        self._delimiter = delimiter

    def scan(self, path: str, task_bytes: int = base.TASK_BYTES) -> base.ShardScan:
        with base.local_shard(path) as here:
            content = content_of(here)
        found = ARROW.scan(self._make_copy(path), task_bytes)
        return base.ShardScan(content.nbytes, content.sha256, found.num_records, found.ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[base.Record]:
        copy = self._make_copy(path)
        with base.name_path(path, copy):
            yield from map(_decode_row, ARROW.read(copy, record_range))

    def read_one(self, path: str, at: base.Locator) -> base.Record:
        copy = self._make_copy(path)
        with base.name_path(path, copy):
            return _decode_row(ARROW.read_one(copy, at))

    def _make_copy(self, path: str) -> str:
        """Return the path of the copy of a shard; a SourceError if there can be none."""
        nbytes, version = base.file_version(path)
        source = path if urls.is_url(path) else os.path.abspath(path)
        key = f"{nbytes} {version} {self._text}.{self._codec} {self._delimiter} Arrow, 5"
        try:
            return cache.make_copy(source, key, functools.partial(self._write_copy, path))
        except OSError as error:
            refuse_open_files(error)
            text = f"cannot convert {path} in {cache.get_folder()}: {error.strerror}"
            raise SourceError(f"{text}; make room, or set PACKIDX_CACHE") from error

    def _write_copy(self, path: str, target: str) -> None:
        """Write the records of a shard as batches of JSON texts."""
        texts: list[bytes] = []
        nbytes = 0
        with base.local_shard(path) as here, pa.ipc.new_stream(target, _SCHEMA) as out:
            for record in self._iter_records(here):
                texts.append(_encode_record(record))
                nbytes += len(texts[-1])
                if nbytes >= _BATCH_BYTES or len(texts) == _BATCH_ROWS:
                    out.write_batch(pa.record_batch([texts], schema=_SCHEMA))
                    texts, nbytes = [], 0
            out.write_batch(pa.record_batch([texts], schema=_SCHEMA))

    def _iter_records(self, path: str) -> Iterator[Any]:
        holder = ""
        if self._text == "json":
            with open_text(path, self._codec) as file:
                kind, holder = json_kind(file)
            if kind != "json":
                text = "it is no array of records, nor an object whose only list is one"
                raise base.BrokenFile(f"{text}: write one record a line (docs/data.md)")
        with open_text(path, self._codec) as file:
            if self._text == "json":
                yield from list_records(file, holder)
            elif self._text == "jsonl":
                skip_bom(file)
                yield from (decode_line(line) for line in file if not line.isspace())
            else:
                is_quoted = self._text == "csv" or self._delimiter is not None
                delimiter = self._delimiter or ("," if is_quoted else "\t")
                yield from cell_records(file, delimiter, is_quoted)


def _encode_record(value: Any) -> bytes:
    """A record, or why there is none, as JSON."""
    record = as_record(value)
    try:
        if not isinstance(record, BadRecord):
            return orjson.dumps(record)
    except TypeError as error:  # half a character, an integer of over 64 bits, or nested too deeply
        reason = "bad_utf8" if "UTF-8" in str(error) else "bad_json"
        record = BadRecord(reason, f"the record cannot be kept: {error}")
    return orjson.dumps([record.reason, record.detail])


def _decode_row(row: base.Record) -> base.Record:
    """The record in a row of the copy."""
    assert isinstance(row.data, dict)
    record = orjson.loads(row.data["record"])
    return row._replace(data=BadRecord(*record) if isinstance(record, list) else record)


def cell_records(
    file: IO[bytes], delimiter: str, is_quoted: bool
) -> Iterator[dict[str, str] | BadRecord]:
    """Yield the records of a table: cells are text, and none is empty. Raise a BrokenFile if there
    is no header, its names are empty or not unique, or a quote is not closed."""
    skip_bom(file)
    lines = (line.decode("utf-8", "surrogateescape") for line in file)
    options: dict[str, Any] = {} if is_quoted else {"quoting": csv.QUOTE_NONE}
    rows = csv.reader(lines, delimiter=delimiter, strict=True, **options)
    names: list[str] = []
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            if "unexpected end" in str(error) or "limit" in str(error):
                line = f"a quote in the last lines up to line {rows.line_num} is not closed"
                raise base.BrokenFile(f"{line} ({error}): close it, or restore the file") from None
            yield BadRecord("bad_row", f"line {rows.line_num}: {error}")
            continue
        if not "".join(cells).strip():
            continue
        if not names:
            names = cells
            if "" in names or len(set(names)) < len(names):
                raise base.BrokenFile(f"give each column a name of its own, not {names!r:.200}")
        elif len(cells) != len(names):
            yield BadRecord("bad_row", f"the row has {len(cells)} cells for {len(names)} columns")
        else:
            yield {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
    if not names:
        raise base.BrokenFile("it is empty: its first line must name the columns")


@contextmanager
def open_text(path: str, codec: str) -> Iterator[IO[bytes]]:
    """A file of this machine, open, its text uncompressed; a BrokenFile if it is not compressed as
    its name says, or cut."""
    what = CODECS.get(codec)
    with storage.raise_unreadable(path), open(path, "rb", opener=storage.open_regular) as packed:
        if what is None:
            yield packed
            return
        if not os.fstat(packed.fileno()).st_size:
            raise base.BrokenFile(f"the {what} stream is cut: the file is empty")
        try:
            text: Any = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), what)
            yield io.BufferedReader(text)
        except (EOFError, pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:  # of the disk
                raise
            text = f"the {what} stream is broken or cut ({error}): restore the file"
            raise base.BrokenFile(text) from None


# -- JSON: an array of records, or an object that holds them in its only list ----------------------


def list_records(file: IO[bytes], holder: str) -> Iterator[Any]:
    """Yield the elements of an array, or of the list that an object has under a name; a BrokenFile
    if the file is not JSON."""
    import ijson  # readers of packs need no parser of JSON arrays

    skip_bom(file)
    number = 0
    try:
        for value in ijson.items(file, f"{holder}.item" if holder else "item", use_float=True):
            yield value
            number += 1
    except (ijson.JSONError, UnicodeDecodeError) as error:
        why = (
            f"it is not JSON, or cut, behind element {number} ({' '.join(str(error).split()):.120})"
        )
        raise base.BrokenFile(f"{why}: restore the file, or write one record a line") from None


def json_kind(file: IO[bytes]) -> tuple[str | None, str]:
    """Return how a JSON file holds records and the name of the list of an object that has them.

    It is "json" for an array, or an object that has one list, "jsonl" for lines, None for any other
    object. Raise a BrokenFile if beside the list stands a text.
    """
    skip_bom(file)
    while (first := file.read(1)).isspace():
        pass
    if first == b"[":
        return "json", ""
    line = first + file.readline()
    try:
        orjson.loads(line)
        if any(not other.isspace() for other in file):
            return "jsonl", ""
    except ValueError:  # an object over several lines
        line += file.read()
    try:
        value = orjson.loads(line)
    except ValueError:
        return "jsonl", ""
    members: dict[str, Any] = value if isinstance(value, dict) else {}
    lists = [key for key, member in members.items() if isinstance(member, list)]
    if len(lists) != 1 or lists[0] not in _HOLDERS:
        return None, ""
    for key, text in members.items():
        if isinstance(text, str) and text and (" " in text or key in _OWN):
            cure = f"write one record a line, as `jq -c '.{lists[0]}[]'` does"
            raise base.BrokenFile(f"{key!r} stands above its records and reaches none: {cure}")
    return "json", lists[0]
