"""JSON Lines: one object a line. The fast path: most data that is worth counting fast is this."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import RecordRange
from packidx.io.storage import reading
from packidx.records.containers.base import (
    TASK_BYTES,
    TASK_RECORDS,
    Container,
    Cuts,
    Locator,
    Record,
    ShardScan,
    attempted,
    local_shard,
    read_bytes,
)

_BOM = b"\xef\xbb\xbf"
SCAN_BLOCK = 4 << 20
_NO_NUMBER = re.compile(rb"\b(NaN|Infinity)\b")


class Lines(Container):
    """Uncompressed JSON Lines."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hasher, cuts, number = hashlib.sha256(), Cuts(task_bytes, TASK_RECORDS), 0
        cuts.at(0, 0, 0)
        with local_shard(path, check=True) as here, reading(here), open(here, "rb") as file:
            offset = skip_bom(file)
            hasher.update(_BOM[:offset])
            while lines := file.readlines(SCAN_BLOCK):
                hasher.update(b"".join(lines))
                for line in lines:
                    cuts.at(offset, number, offset)
                    number += not line.isspace()
                    offset += len(line)
        ranges = cuts.ranges(offset, number, None)
        return ShardScan(offset, hasher.hexdigest(), number, ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[Record]:
        offset, row = record_range.start, record_range.first_row
        with local_shard(path) as here, reading(here), open(here, "rb", buffering=1 << 20) as file:
            offset = offset or skip_bom(file)
            file.seek(offset)
            for line in file:
                if offset >= record_range.end:
                    return
                if not line.isspace():
                    text = line.removesuffix(b"\n").removesuffix(b"\r")
                    yield Record(attempted(decode, text), Locator(row, offset, len(text)))
                    row += 1
                offset += len(line)

    def read_one(self, path: str, at: Locator) -> Record:
        return Record(decode(read_bytes(path, at)), at)


def skip_bom(file: Any) -> int:
    """Read the byte order mark at the start of a file, and return its length."""
    return len(file.read(len(_BOM))) if file.peek(len(_BOM)).startswith(_BOM) else 0


def decode(line: bytes) -> dict[str, Any]:
    """Return one line's JSON object; ``NaN`` and ``Infinity`` in it are null.

    Raises:
        BadRecord: ``bad_utf8``, ``bad_json`` or ``bad_record`` (JSON, but not an object).
    """
    try:
        try:
            return as_object(orjson.loads(line))
        except ValueError:
            if _NO_NUMBER.search(line) is None:
                raise
            return as_object(orjson.loads(orjson.dumps(json.loads(line))))
    except (ValueError, TypeError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            text = f"byte {wrong.start} is not UTF-8: write the file as UTF-8"
            raise BadRecord("bad_utf8", text) from None
        text = f"{getattr(error, 'msg', error)} at character {getattr(error, 'pos', 0)}"
        raise BadRecord("bad_json", f"{text} of the record") from None


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON value that is a record.

    Raises:
        BadRecord: ``bad_record``, it is not an object.
    """
    if not isinstance(value, dict):
        kind = {list: "a list", str: "text", type(None): "null", bool: "a boolean"}
        text = f"the record is {kind.get(type(value), 'a number')}, not an object"
        raise BadRecord("bad_record", text)
    return value
