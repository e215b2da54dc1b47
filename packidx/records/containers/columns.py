"""Rows of Arrow tables as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from packidx.errors import BadRecord
from packidx.records.containers.base import BrokenFile, without_nulls


def check_names(schema: pa.Schema) -> None:
    """Refuse tables of which a record cannot be made.

    Raises:
        BrokenFile: two columns have one name.
    """
    names = schema.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BrokenFile(f"it has several columns of the same name ({', '.join(twice)}): rename")


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
