"""Rows of Arrow tables as records, and files that hold such tables as containers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from packidx.errors import BadRecord
from packidx.records.containers.base import (
    TASK_BYTES,
    BrokenFile,
    RawRecord,
    RecordRange,
    ShardScan,
    group_ranges,
    too_few,
)
from packidx.records.containers.blocks import file_hash


class TableFile(Protocol):
    """A file of tables, opened."""

    @property
    def nbytes(self) -> list[int]:
        """Bytes of each row group, or batch, of the file."""

    @property
    def starts(self) -> list[int]:
        """Number of the first row of each of these, and of all rows."""

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one of these, some at a time."""


class Columnar(ABC):
    """A kind of file of tables; `start` and `end` of a range are numbers of row groups."""

    @abstractmethod
    def checked(self, path: str) -> TableFile:
        """A file, after a look at all that may be wrong with it."""

    @abstractmethod
    def opened(self, path: str) -> TableFile:
        """A file that was checked before."""

    @abstractmethod
    def record(self, path: str, row: int) -> dict[str, Any] | BadRecord:
        """The record in one row."""

    def scan(self, path: str, task_bytes: int = TASK_BYTES) -> ShardScan:
        hashing = file_hash(path)
        file = self.checked(path)
        ranges = group_ranges(file.starts, file.nbytes, task_bytes)
        return ShardScan(hashing.nbytes, hashing.sha256, file.starts[-1], ranges)

    def read(self, path: str, record_range: RecordRange) -> Iterator[RawRecord]:
        file = self.opened(path)
        row = record_range.first_row
        for number in range(record_range.start, min(record_range.end, len(file.nbytes))):
            for batch in file.batches(number):
                for record in records_of(batch):
                    yield RawRecord(row, None, None, record)
                    row += 1
        if row != record_range.first_row + record_range.num_records:
            raise too_few(path, row)

    def read_row(
        self, path: str, row: int, offset: int | None = None, nbytes: int | None = None
    ) -> dict[str, Any]:
        record = self.record(path, row)
        if isinstance(record, BadRecord):
            raise BadRecord(record.reason, f"{record.detail} ({path}, row {row})")
        return record


def check_names(schema: pa.Schema) -> None:
    """Raise a `BrokenFile` if two columns have one name: records have no place for both."""
    names = schema.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BrokenFile(f"it has several columns of the same name ({', '.join(twice)}): rename")


def check_batch(batch: pa.RecordBatch) -> None:
    """Refuse a batch whose buffers do not hold what they say: reading it could crash the process.

    Texts that are not UTF-8 may be in it; their rows are rejected one by one.

    Raises:
        pa.ArrowInvalid: it is damaged.
    """
    batch.validate()  # sizes, before `view` looks at them
    for column in batch.columns:
        kind = _bytes_type(column.type)
        (column if kind == column.type else column.view(kind)).validate(full=True)


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with bytes in place of texts, at any depth."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bytes_type(field.type)) for field in kind])
    for is_list, make in _LISTS:
        if is_list(kind):
            return make(kind.value_field.with_type(_bytes_type(kind.value_type)))
    return kind


_LISTS = ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list))


def records_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | BadRecord]:
    """A batch's rows as records without null members; a row that cannot be one is its error."""
    try:
        rows = batch.to_pylist()
    except (UnicodeDecodeError, pa.ArrowException, OverflowError, ValueError):
        for number in range(batch.num_rows):  # some value is bad: find out whose
            yield record_at(batch, number)
        return
    for row in rows:
        yield _record(row)


def record_at(batch: pa.RecordBatch, number: int) -> dict[str, Any] | BadRecord:
    """One row of a batch as a record."""
    try:
        return _record(batch.slice(number, 1).to_pylist()[0])
    except UnicodeDecodeError as error:
        return BadRecord("bad_utf8", f"byte {error.start} of a text is not UTF-8")
    except (pa.ArrowException, OverflowError, ValueError) as error:
        return BadRecord("bad_record", f"a value cannot be read: {error}")


def _record(row: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = without_nulls(row) or {}
    return {key: value for key, value in members.items() if value is not None}


def without_nulls(value: Any) -> Any:
    """`value` without the null members of its objects, at any depth.

    Columns hold a null wherever another row has a member that this one lacks, so a null there says
    what a missing member says in JSON.
    """
    if type(value) is dict:
        kept = {key: without_nulls(item) for key, item in value.items() if item is not None}
        return kept if kept or not value else None
    if type(value) is list and value and type(value[0]) in (dict, list, type(None)):
        return [without_nulls(item) for item in value]
    return value
