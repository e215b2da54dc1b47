"""Leftovers: what a record holds, and its dialect does not consume.

A column that the dialect does not consume is a leftover if it holds a medium (bytes, a file's name,
base64), objects, or prose. So is every key of a message or a content part that nothing reads. Other
values, such as numbers, ids and single words, are carried along. Names of columns mean nothing, but
for the id of a medium in a record that has none: its image lies somewhere else.

Example: of `{"question": "Why?", "answer": "So.", "cot": "It is so.", "split": "train"}` the column
`cot` is a leftover, and `split` is carried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import PAIR_SIDES
from packidx.records.dialects.parse import MESSAGE_KEYS
from packidx.records.dialects.questions import caption_column, question_form
from packidx.records.dialects.sides import BESIDE
from packidx.records.dialects.standard import (
    COLUMNS_OF_TEXTS,
    MEDIA_COLUMNS,
    ORIGIN_COLUMNS,
    is_document,
)
from packidx.records.layout import IDS, UNUSED, hidden_columns, own_columns
from packidx.records.media.held import NUMBERS, content_in
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    PART_KEYS,
    TURN_KEYS,
    content_of,
    media_entries,
    part_kind,
    role_of,
    turn_key,
)
from packidx.records.members import MEMBERS

USED, CARRIED, IGNORED, NOT_USED = "used", "carried", "ignored", "not used"
"""Uses of a column."""

Record = Mapping[str, Any]

_ORDER = (CARRIED, IGNORED, NOT_USED, USED)
_SIZED = frozenset((str, list, tuple, dict, bytes, type(None)))  # that may be empty
_SHARED = frozenset(
    (*IDS, *(key for keys in LIST_KEYS.values() for key in keys), "mm_inputs_meta", "_text_tokens")
    + (MEMBERS,)
)
_TOKENS = frozenset(("input_ids", "labels", "_text_tokens", *IDS))
_MASKS = frozenset(("loss_mask", "loss_weights", "assistant_masks", "completion_mask"))


def merge_columns(columns: dict[str, str], others: Mapping[str, str]) -> None:
    """Add the columns of other records; of two uses of a column the later in `_ORDER` counts."""
    for name, use in others.items():
        columns[name] = max(columns.get(name, use), use, key=_ORDER.index)


class LeftoverCheck:
    """Refuse records with leftovers.

    Args:
        layout: how their source names things; its `ignore` acknowledges leftovers.
        columns: is given every column and key of a message that is seen, and its use.
    """

    def __init__(self, layout: Layout, columns: dict[str, str]) -> None:
        self._layout, self._columns = layout, columns
        self._ignored = frozenset(layout.ignore)
        self._hidden = hidden_columns(layout)

    def check(self, raw: Record, record: Record) -> None:
        """Raise a BadRecord (`UNUSED`) if a record has a leftover.

        Args:
            raw: as it stands in its shard, or as a transform returned it.
            record: the same in the standard names.
        """
        left = list(self._leftovers(raw, record))
        for name, _ in left:
            merge_columns(self._columns, {name: NOT_USED})
        if left:
            told = ", ".join(f"{name!r} ({what})" for name, what in left)
            names = ",".join(name for name, _ in left)
            text = f"nothing reads {told}: --ignore {names} leaves it out"
            raise BadRecord(UNUSED, f"{text}; docs/data.md says how to read it")

    def _leftovers(self, raw: Record, record: Record) -> Iterator[tuple[str, str]]:
        names = _consumed(record)
        if names is None:
            return
        consumed = self._consumed(raw, names, record)
        columns, ignored = self._columns, self._ignored
        said: list[Any] | None = None
        for name, value in raw.items():
            if name in consumed or name in ignored:
                if name not in columns and name != MEMBERS:
                    columns[name] = IGNORED if name in ignored else USED
                continue
            if name not in columns:
                columns[name] = CARRIED
            if value is None or type(value) in NUMBERS:
                continue
            what = content_in(value)
            if what is None and isinstance(raw.get("input_ids"), list):
                what = _mask(name, value, raw["input_ids"])
            if what is not None:
                said = said or [raw[own] for own in consumed if own in raw]
                if not _is_said(value, said):
                    yield name, what
        for kind in LIST_KEYS:
            name = f"{kind}_id"
            if name in raw and not (_is_empty(raw[name]) or name in ignored or _has_media(record)):
                yield name, f"the id of a medium ({kind}) that the record does not hold"
        seen = {*ignored}
        for key in _keys_of_messages(record):
            if key not in seen:
                seen.add(key)
                yield key, "a key of a message"

    def _consumed(self, raw: Record, names: frozenset[str], record: Record) -> frozenset[str]:
        """Return the columns of `raw` that its dialect consumes.

        Args:
            names: those of `record`.
        """
        own = self._layout.columns
        if names is not _TOKENS and "messages" not in own and turn_key(raw) is None:
            if turn_key(record) is not None:
                names = names | COLUMNS_OF_TEXTS
            else:
                listed = [
                    id(entry) for kind in LIST_KEYS for entry in media_entries(record, kind)[1]
                ]
                for name in MEDIA_COLUMNS & raw.keys():
                    held = raw[name] if isinstance(raw[name], list) else [raw[name]]
                    names = names | {name} if {*map(id, held)} <= {*listed} else names
        if self._layout.pair or not self._layout.stated_columns.isdisjoint(PAIR_SIDES):
            names = names | {*PAIR_SIDES, *BESIDE, *TURN_KEYS, "prompt"}
        return names - self._hidden | own_columns(self._layout, names) if own else names


def _consumed(record: Record) -> frozenset[str] | None:
    """Return the columns of a record in the standard names that its dialect consumes; None if it is
    of no dialect."""
    if record.get("input_ids") is not None:
        return _TOKENS
    key, names = turn_key(record), _SHARED
    if key is not None:
        turns = record[key]
        if isinstance(turns, list) and is_document(turns):
            return names | {key}
        names = names | {key}
    elif (form := question_form(record)) is not None:
        names = names | {name for name in form if name} | {"history"}
    elif (caption := caption_column(record)) is not None:
        origins = {name for name in ORIGIN_COLUMNS if "://" in str(record.get(name))[:8]}
        names = names | {caption} | origins
    else:
        name = next((name for name in ("text", "txt") if record.get(name) is not None), None)
        return None if name is None else names | {name}
    system = "system" if not _is_empty(record.get("system")) else "system_prompt"
    return names | {"tools", system}


def _has_media(record: Record) -> bool:
    """Return True if a list of media, or a content part, of a record holds something."""
    if any(media_entries(record, kind)[1] for kind in LIST_KEYS):
        return True
    turns = record.get(turn_key(record) or "")
    contents = (content_of(turn)[1] for turn in turns or () if isinstance(turn, OBJECT))
    listed = (part for content in contents if isinstance(content, list) for part in content)
    return any(part_kind(part) not in (None, "text") for part in listed)


def _is_empty(value: Any) -> bool:
    return type(value) in _SIZED and not value


def _mask(name: str, value: Any, ids: Sequence[int]) -> str | None:
    """Return what a list of a number for each token is, if some are left out of it."""
    if not isinstance(value, list) or name.endswith("type_ids"):
        return None
    is_mask = len(value) == len(ids) and (-100 in value or {*value} == {0, 1})
    return "a mask" if is_mask or name in _MASKS else None


def _is_said(value: Any, said: Sequence[Any]) -> bool:
    """Return True if a text, or each of a list of texts, is the text of a consumed column."""
    items = value if isinstance(value, list | tuple) else [value]
    texts = [text for text in said if isinstance(text, str)]
    return all(isinstance(item, str) and item in texts for item in items)


def _keys_of_messages(record: Record) -> Iterator[str]:
    """Yield the non-empty keys of messages, content parts and media that nothing reads."""
    key = turn_key(record)
    for kind_keys in LIST_KEYS.values():
        for name in kind_keys:
            listed = record.get(name)
            for entry in listed if isinstance(listed, list) else (listed,):
                yield from _unknown(entry, PART_KEYS)
    turns = None if key is None else record[key]
    for turn in turns if isinstance(turns, list) else ():
        if role_of(turn) is None:
            return  # no message: its record is rejected
        yield from _unknown(turn, MESSAGE_KEYS)
        content = content_of(turn)[1]
        for part in content if isinstance(content, list) else ():
            yield from _unknown(part, PART_KEYS)
            kind = part_kind(part)
            inner = None if kind in (None, "text") else part.get(part.get("type", kind))
            yield from _unknown(inner, PART_KEYS)


def _unknown(entry: Any, known: frozenset[str]) -> Iterator[str]:
    if isinstance(entry, OBJECT) and not entry.keys() <= known:
        yield from (key for key in entry if key not in known and not _is_empty(entry[key]))
