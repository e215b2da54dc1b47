"""How a data set names its columns, roles and parts, and its records in the standard names.

A `Layout` comes from a mix (`mixes`) or from the command line. `apply` is the one place that knows
a data set's own words; behind it every record has the names that `dialects.parse` knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import COLUMNS, TAGS
from packidx.records.media.references import TURN_KEYS, turn_key

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
_PAIR_KEYS = ("prompt", "chosen", "rejected", "rejected_messages")  # that may hold turns
_ROLE_KEYS = ("role", "from")
_NEVER_LEFT_OUT = frozenset((*_ROLE_KEYS, "content", "value", "name", "id", "tool_call_id"))
"""Keys of messages that are not left out where a column of that name is ignored."""


def apply(layout: Layout, record: dict[str, Any]) -> dict[str, Any]:
    """`record` in the standard names; itself where nothing has to change.

    JSON in text, as tables hold lists of turns, becomes what it says; so does an object of
    equally long lists, as `datasets` once stored lists of turns.

    Args:
        record: as it stands in its shard; it is not changed.

    Raises:
        BadRecord: ``no_messages``, ``bad_record`` or ``bad_json``.
    """
    if layout.ignore:
        record = {name: value for name, value in record.items() if name not in layout.ignore}
    if layout.columns:
        record = _renamed(layout, record)
    record = _structured(record)
    if layout.pair is not None:
        record = _with_sides(layout, record)
    left_out = frozenset(layout.ignore) - _NEVER_LEFT_OUT
    return _retagged(layout, record, left_out) if layout.tags or left_out else record


def _renamed(layout: Layout, record: dict[str, Any]) -> dict[str, Any]:
    """`record` with the stated names besides its own; what would be taken for a stated column,
    and what is stated to be another one, is left out."""
    hidden = hidden_columns(layout)
    renamed = {k: v for k, v in record.items() if k not in hidden}
    for standard, name in layout.columns.items():
        if (value := _stated(record, name)) is not None:
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


def _retagged(layout: Layout, record: dict[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    """`record` whose turns have the standard keys and roles, without the keys `left_out`."""
    key = turn_key(record)
    words = [(tag, word) for tag, own in layout.tags.items() for word in (own, *own.split(","))]
    roles = {word: TAGS[tag] for tag, word in words if TAGS[tag] is not None}
    changed: dict[str, Any] = {}
    for name in (key, *(_PAIR_KEYS if layout.pair is not None else ())):
        turns = None if name is None else record.get(name)
        if isinstance(turns, list | tuple):
            changed[str(name)] = [_turn(layout, turn, roles, left_out) for turn in turns]
        elif isinstance(turns, dict) and name in _PAIR_KEYS:
            changed[str(name)] = _turn(layout, turns, roles, left_out)
    return {**record, **changed} if changed else record


def _with_sides(layout: Layout, record: dict[str, Any]) -> dict[str, Any]:
    """`record` with turns for JSON text of turns, where a pair may have either."""
    role_keys = {*_ROLE_KEYS, layout.tags.get("role_tag", "role")}
    changed = {}
    for key in _PAIR_KEYS:
        value = record.get(key)
        if not isinstance(value, str) or value[:1] not in ("[", "{"):
            continue
        try:
            turns = orjson.loads(value)
        except ValueError:
            continue  # a text that begins with a bracket
        listed = turns if isinstance(turns, list) else [turns]
        if listed and all(isinstance(t, dict) and role_keys & t.keys() for t in listed):
            changed[key] = turns
    return {**record, **changed} if changed else record


def _turn(
    layout: Layout, turn: Any, roles: Mapping[str, str | None], left_out: frozenset[str]
) -> Any:
    if not isinstance(turn, dict) or not (layout.tags or left_out & turn.keys()):
        return turn
    named = _key_of(layout, turn, "role_tag", ("role", "from"))
    content = _key_of(layout, turn, "content_tag", ("content", "value"))
    turn = dict(turn)
    role = turn.pop(named, None)
    said = turn.pop(content, None)
    for key in ("role", "from", "content", "value", *(left_out & turn.keys())):
        turn.pop(key, None)
    stated = roles.get(role, role) if isinstance(role, str) else role
    return {"role": stated, "content": said, **turn}


def _key_of(layout: Layout, turn: dict[str, Any], tag: str, usual: tuple[str, ...]) -> str:
    if tag in layout.tags:
        return layout.tags[tag]
    return next((key for key in usual if key in turn), usual[0])


def _stated(record: Mapping[str, Any], name: str) -> Any:
    """Return what a record has in a stated column, or in all of several as one list; None if
    nothing."""
    if name in record or "," not in name:
        return record.get(name)
    values = [record[key] for key in name.split(",") if record.get(key) is not None]
    listed = [value if isinstance(value, list | tuple) else [value] for value in values]
    return [item for items in listed for item in items] or None


def _structured(record: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in record.items():
        if type(value) is list or key not in _STRUCTURED:
            continue
        if type(value) is str and value[:1] in ("[", "{") and value.rstrip()[-1:] in ("]", "}"):
            changed[key] = value = _loads(value, key)
        if type(value) is dict and key in TURN_KEYS:
            changed[key] = _transposed(value)
    return {**record, **changed} if changed else record


def _loads(text: str, key: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise BadRecord("bad_json", f"the text in {key!r} is not JSON: {error}") from None


def _transposed(turns: dict[str, Any]) -> Any:
    """Lists of roles and of texts as a list of turns."""
    lists = list(turns.values())
    if not all(isinstance(value, list) for value in lists) or len(set(map(len, lists))) != 1:
        return turns
    return [
        {k: v for k, v in zip(turns, row, strict=True) if v is not None}
        for row in zip(*lists, strict=True)
    ]
