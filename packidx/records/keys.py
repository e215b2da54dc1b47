"""What a record is called: in the lengths table, and when it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
