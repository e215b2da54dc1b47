"""Rows of Arrow tables as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from packidx.errors import BadRecord
from packidx.records.containers.base import BrokenFile


def check_names(schema: pa.Schema) -> None:
    """Refuse tables of which a record cannot be made.

    Raises:
        BrokenFile: two columns have one name.
    """
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
    found: dict[str, Any] = without_nulls(row) or {}
    return {key: value for key, value in found.items() if value is not None}


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
