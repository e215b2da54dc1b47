"""JSON: an array of records, or an object that holds them in its only list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import orjson

from packidx.format.terms import COLUMNS
from packidx.records.containers.base import BrokenFile
from packidx.records.containers.lines import skip_bom

_HOLDERS = frozenset(
    ("annotations", "data", "dataset", "entries", "examples", "instances", "items")
    + ("questions", "records", "rows", "samples")
)
"""Names under which an object may hold a list of records."""
_OWN = frozenset(COLUMNS) - {"id"}
"""Names of what a record says: above the list, one word of text is one too many."""


def list_records(file: IO[bytes], holder: str) -> Iterator[Any]:
    """Yield the elements of an array, or of the list that an object has under a name.

    Raises:
        BrokenFile: the file is not JSON.
    """
    import ijson  # readers of packs need no parser of JSON arrays

    skip_bom(file)
    number = 0
    try:
        for value in ijson.items(file, f"{holder}.item" if holder else "item", use_float=True):
            yield value
            number += 1
    except (ijson.JSONError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())[:120]
        raise BrokenFile(
            f"it is not JSON, or cut, behind element {number} ({why}): restore the file, or write "
            "one record a line"
        ) from None


def json_kind(file: IO[bytes]) -> tuple[str | None, str]:
    """Return how a JSON file holds records and the name of the list that has them.

    Returns:
        "json" for an array, or an object that has one list, "jsonl" for lines, None for any other
        object; and the name of the list of an object.

    Raises:
        BrokenFile: beside the list stands a text.
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
            raise BrokenFile(
                f"{key!r} stands above its records and would reach none of them: write one record "
                f"a line, as `jq -c '.{lists[0]}[]'` does"
            )
    return "json", lists[0]
