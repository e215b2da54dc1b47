"""Records in the standard names: a dialect with other names for its turns or media ends here.

WebDataset samples and LoongForge's ``texts`` may have a ``media_type``: of which kinds their media
are. What it says must be so; any word but ``text`` and ``image+video`` and the like is another
tool's, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.containers.tar import KEY, MEMBERS, TAR, Members
from packidx.records.dialects.columns import is_pairs, with_columns, with_pairs
from packidx.records.dialects.documents import (
    TEXT_LIST,
    is_interleaved,
    is_sentences,
    with_interleaved,
    with_sentences,
)
from packidx.records.dialects.sides import TEXTS, is_texts, stated_type, take_side, with_texts
from packidx.records.dialects.webdataset import has_placeholder, with_members
from packidx.records.layout import DEFAULT, TURN_KEYS, Layout
from packidx.records.media.references import LIST_KEYS, media_entries

_KEYS = ("id", "key", "__key__", "uid")  # a record's own id


def standard(record: dict[str, Any], layout: Layout, cells: bool) -> dict[str, Any]:
    """A record in the standard names, with the media that its container has beside it.

    Args:
        record: as it stands in its shard, or as a transform returned it.
        layout: how its source names things; of pairs, which side is taken.
        cells: all its values are text, from a table.

    Raises:
        BadRecord: it is of no known form.
    """
    if layout.ignore and isinstance(members := record.get(MEMBERS), Members):
        start = len(members.key)
        files = {n: c for n, c in members.files.items() if n[start:] not in layout.ignore}
        record = {**record, MEMBERS: members._replace(files=files)}
    record = layout.apply(record, cells=cells)
    if layout.pair is not None:
        record = take_side(with_columns(record), layout.pair)
    if TEXTS in record or MEMBERS in record or TEXT_LIST in record:
        stated = _stated_kinds(record)
        record = with_members(_with_turns(record), stated)
        if stated is not None:
            _check_kinds(record, stated)
    return with_columns(record)


def _with_turns(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with messages, where it has them in other words."""
    if is_texts(record):
        texts = record[TEXTS]
        if is_pairs(texts):
            return with_pairs(record)
        return with_interleaved(record) if is_interleaved(texts) else with_texts(record)
    return with_sentences(record) if is_sentences(record) else record


def _stated_kinds(record: Mapping[str, Any]) -> frozenset[str] | None:
    """The kinds of media that a record states it has, all of them; None where it does not say."""
    word = stated_type(record) if is_texts(record) else record.get("media_type")
    if not isinstance(word, str):
        return None
    kinds = frozenset(word.split("+"))
    return frozenset() if word == "text" else kinds if kinds <= LIST_KEYS.keys() else None


def _check_kinds(record: Mapping[str, Any], stated: frozenset[str]) -> None:
    """Raise a BadRecord if a record has media, or places for them, of other kinds than `stated`."""
    actual = {kind for kind in LIST_KEYS if _has(record, kind)}
    if actual != stated:
        has = " and ".join(f"{kind}s" for kind in sorted(actual)) or "no media"
        text = (
            f"the record's media_type says {'+'.join(sorted(stated)) or 'text'}, but it has {has}"
        )
        raise BadRecord("bad_media", text)


def _has(record: Mapping[str, Any], kind: str) -> bool:
    if media_entries(record, kind)[1]:
        return True
    listed = (record[key] for key in TURN_KEYS if isinstance(record.get(key), list | tuple))
    turns = (turn for turns in listed for turn in turns)
    return any(has_placeholder(turn, kind) for turn in turns)


def record_key(record: Mapping[str, Any]) -> str | None:
    """The record's own id as text; None where it has none that is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in _KEYS:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def key_of(record: Mapping[str, Any], kind: str, layout: Layout = DEFAULT) -> str | None:
    """What a record, as it stands in its shard, is called there; None where it has no name.

    Args:
        kind: of the shard's container.
        layout: of its source.
    """
    if kind != TAR:
        column = layout.columns.get("id")
        return record_key(record if column is None else {"id": record.get(column)})
    named = record.get(KEY)
    return None if named is None else str(named)
