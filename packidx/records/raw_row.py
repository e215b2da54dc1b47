"""One record as it stands in its shard."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from packidx.records.containers.blocks import local_shard
from packidx.records.containers.registry import container


def raw_row(
    path: str,
    row: int,
    offset: int | None,
    nbytes: int | None,
    *,
    kind: str,
    delimiter: str | None,
) -> dict[str, Any]:
    """The record, under the file's own names.

    Raises:
        BadRecord: it cannot be decoded.
        SourceError: the file is missing, unreadable or has no such record.
    """
    is_read_there = "." in kind or (offset is not None and nbytes is not None)
    with nullcontext(path) if is_read_there else local_shard(path) as local:
        return container(kind, delimiter).read_row(local, row, offset, nbytes)
