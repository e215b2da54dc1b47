"""Columns of a record by their standard names.

A `Layout` comes from a mix (`mixes`) or from the command line. `standard_columns` is the one place
that knows a data set's own columns; behind it every record has the names that dialects know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import COLUMNS
from packidx.records.media.references import TURN_KEYS

_KEYS = {"text_tokens": "_text_tokens"}  # a column's key in the record, where it has another name
UNUSED = "unused_column"
"""Reason of a record with content in a place that is not read."""
CAPTIONS = ("caption", "text", "TEXT", "txt")
"""Columns of what is said of a medium, the first of which is taken."""
IDS = ("id", "key", "__key__", "uid")
"""Columns of a record's own id, the first of which is taken."""
SYSTEM = ("system", "system_prompt")
"""Columns of a system prompt, the first of which is taken."""
_RIVALS = {
    "messages": (*TURN_KEYS, "texts", "text_list"),
    "images": ("images", "image"),
    "videos": ("videos", "video"),
    "audios": ("audios", "audio"),
    "id": IDS,
    "system": SYSTEM,
    "prompt": ("prompt", "instruction", "question"),
    "query": ("query", "input"),
    "response": ("response", "completion", "output", "answer", "answers", "answerKey"),
    "caption": CAPTIONS,
    "text": CAPTIONS,
}  # keys of the same meaning as a stated column, so that no other is taken for it
KNOWN = frozenset((*COLUMNS, *(name for names in _RIVALS.values() for name in names)))
"""Names with a meaning, which they lose where they are stated to be something else."""
_REQUIRED = ("messages", "input_ids", "labels", "prompt", "response", "caption", "text")
_STRUCTURED = frozenset(
    (*TURN_KEYS, "input_ids", "labels", "mm_inputs_meta", "history")
    + ("images", "image", "videos", "video", "audios", "audio")
)


def standard_columns(layout: Layout, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record's columns by their standard names, without ignored ones; the record itself if
    nothing has to change.

    JSON in text, as tables hold lists of turns, is decoded; an object of equally long lists, as
    `datasets` once stored lists of turns, becomes a list of objects.

    Args:
        record: as it stands in its shard; it is not changed.

    Raises:
        BadRecord: ``no_messages`` or ``bad_json``.
    """
    if layout.ignore:
        record = {name: value for name, value in record.items() if name not in layout.ignore}
    return _structured(_renamed(layout, record) if layout.columns else record)


def key_of(record: Mapping[str, Any], layout: Layout) -> str | None:
    """Return the id of a record as it stands in its shard; None if none is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in (layout.columns["id"],) if "id" in layout.columns else IDS:
        value = record.get(name) if name not in layout.ignore else None
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _renamed(layout: Layout, record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` with the stated names besides its own; what would be taken for a stated column,
    and what is stated to be another one, is left out."""
    hidden = hidden_columns(layout)
    renamed = {k: v for k, v in record.items() if k not in hidden}
    for standard, name in layout.columns.items():
        value = record.get(name)
        if value is None and name not in record and "," in name:  # all of several as one list
            values = [record[key] for key in name.split(",") if record.get(key) is not None]
            listed = [each if isinstance(each, list | tuple) else [each] for each in values]
            value = [item for items in listed for item in items] or None
        if value is not None:
            renamed[_KEYS.get(standard, standard)] = value
            if standard == "query":
                renamed["input"] = value  # what stands beside an instruction or a question
        elif standard in _REQUIRED:
            text = f"the record has no column {name!r}, which is stated to hold its {standard}"
            raise BadRecord("no_messages", text)
    return renamed


def hidden_columns(layout: Layout) -> set[str]:
    """Return the columns that lose their meaning, since another is stated to have it."""
    hidden = {name for standard in layout.columns for name in _RIVALS.get(standard, (standard,))}
    hidden.update(_KEYS.get(standard, standard) for standard in layout.columns)
    return hidden | layout.stated_columns & KNOWN


def own_columns(layout: Layout, names: Collection[str]) -> set[str]:
    """Return the columns that are stated to hold one of `names`."""
    stated = {
        own
        for standard, own in layout.columns.items()
        if _KEYS.get(standard, standard) in names or (standard == "query" and "input" in names)
    }
    return stated | {name for own in stated for name in own.split(",")}


def _structured(record: Mapping[str, Any]) -> Mapping[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in record.items():
        if type(value) is list or key not in _STRUCTURED:
            continue
        if type(value) is str and value[:1] in ("[", "{") and value.rstrip()[-1:] in ("]", "}"):
            try:
                changed[key] = value = orjson.loads(value)
            except ValueError as error:
                raise BadRecord("bad_json", f"the text in {key!r} is not JSON: {error}") from None
        if type(value) is dict and key in TURN_KEYS:  # lists of roles and of texts
            lists = list(value.values())
            if all(isinstance(each, list) for each in lists) and len({*map(len, lists)}) == 1:
                rows = [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)]
                changed[key] = [{k: v for k, v in r.items() if v is not None} for r in rows]
    return {**record, **changed} if changed else record
