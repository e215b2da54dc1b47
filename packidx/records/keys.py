"""What a record is called: in the lengths table, and when it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import ChangedSource
from packidx.format.rows import Sample

_NAMES = ("id", "key", "__key__", "uid")


def record_key(record: Mapping[str, Any]) -> str | None:
    """The record's own id as text; None where it has none that is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in _NAMES:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def key_of(record: Mapping[str, Any], kind: str) -> str | None:
    """What a record is called in its shard, a container of `kind`; None where it has no name."""
    from packidx.records.containers.tar.container import TAR
    from packidx.records.containers.tar.samples import KEY

    if kind != TAR:
        return record_key(record)
    named = record.get(KEY)  # not there where a layout says which members are read
    return None if named is None else str(named)


def check_key(path: str, sample: Sample, actual: str | None) -> None:
    """
    Raises:
        ChangedSource: the record is called `actual`, which is not what the plan calls it.
    """
    if actual is not None and sample.key is not None and actual != sample.key:
        raise ChangedSource(
            f"shard {path} has the record {actual!r} where {sample.key!r} was counted: it was"
            " written anew since, so restore it, or estimate and plan again"
        )
