"""JSON, CSV, TSV and compressed text: converted once into JSON Lines.

The copy is in the local cache (`packidx.io.cache`), for all processes of this machine: a record a
line, a record that cannot be understood as a list of its reason and detail, and behind the lines
where each begins. A row of such a shard has no byte range: whoever reads one finds it in the copy.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa

from packidx.errors import BadRecord, SourceError
from packidx.io import cache, storage, urls
from packidx.io.copies import content_of
from packidx.io.files import refuse_open_files
from packidx.records.containers.base import (
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
from packidx.records.containers.cells import cell_records
from packidx.records.containers.json_list import json_kind, list_records
from packidx.records.containers.lines import as_object, decode, skip_bom

CODECS = {"gz": "gzip", "zst": "Zstandard"}
"""Endings of compressed text, and how that is called."""
_WIDTH = array("q").itemsize


class Converted(Container):
    """Shards of a kind that is read through a copy in JSON Lines.

    Args:
        kind: with its codec, as ``csv.gz``.
        delimiter: between the cells of a table, which may then be quoted; None is the kind's own.
    """

    def __init__(self, kind: str, delimiter: str | None = None) -> None:
        self._text, _, self._codec = kind.partition(".")
        self._delimiter = delimiter

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
        form = f"{self._text}.{self._codec} {self._delimiter}"
        key = f"{nbytes} {version} {form} JSON Lines, 4"
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
        with local_shard(path) as here, open(target, "wb") as out:
            for record in self._records(here):
                line = _line(record)
                out.write(line + b"\n")
                starts.append(starts[-1] + len(line) + 1)
            starts.append(len(starts))
            starts.tofile(out)

    def _records(self, path: str) -> Iterator[Any]:
        holder = ""
        if self._text == "json":
            with open_text(path, self._codec) as file:
                kind, holder = json_kind(file)
            if kind != "json":
                raise BrokenFile(
                    "it is no array of records, nor an object whose only list is one (docs/data.md "
                    "joins COCO's lists): restore the file, or write one record a line"
                )
        with open_text(path, self._codec) as file:
            if self._text == "json":
                yield from list_records(file, holder)
            elif self._text == "jsonl":
                skip_bom(file)
                yield from (attempted(decode, line) for line in file if not line.isspace())
            else:
                is_quoted = self._text == "csv" or self._delimiter is not None
                delimiter = self._delimiter or ("," if is_quoted else "\t")
                yield from cell_records(file, delimiter, is_quoted)


def _line(record: Any) -> bytes:
    """A record, or why there is none, as a line of the copy."""
    try:
        if not isinstance(record, BadRecord):
            return orjson.dumps(as_object(record))
    except BadRecord as error:
        record = error
    except TypeError as error:  # half a character, an integer of over 64 bits, or nested too deeply
        reason = "bad_utf8" if "UTF-8" in str(error) else "bad_json"
        record = BadRecord(reason, f"the record cannot be kept: {error}")
    return orjson.dumps([record.reason, record.detail])


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


@contextmanager
def open_text(path: str, codec: str) -> Iterator[IO[bytes]]:
    """A file of this machine, open, its text uncompressed.

    Raises:
        SourceError: the file cannot be read.
        BrokenFile: it is not compressed as its name says, or it is cut.
    """
    what = CODECS.get(codec)
    with storage.reading(path), open(path, "rb", opener=storage.open_regular) as packed:
        if what is None:
            yield packed
            return
        if not os.fstat(packed.fileno()).st_size:
            raise BrokenFile(f"the {what} stream is cut: the file is empty")
        try:
            yield _OPENERS[codec](packed)
        except (EOFError, zlib.error, pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:  # of the disk
                raise
            text = f"the {what} stream is broken or cut ({error}): restore the file"
            raise BrokenFile(text) from None


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "zst": lambda file: io.BufferedReader(
        pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
    ),
}
