"""``media_type``: of which kinds a sample says its media are; what it says must be so.

WebDataset samples and LoongForge's ``texts`` state it. A word that is none of these is another
tool's, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.errors import BadRecord
from packidx.records.dialects.loongforge import is_texts, stated_type
from packidx.records.dialects.webdataset import has_placeholder
from packidx.records.layout import TURN_KEYS
from packidx.records.media.references import LIST_KEYS, media_entries

_KINDS = {
    "text": frozenset[str](),
    "image": frozenset(("image",)),
    "video": frozenset(("video",)),
    "image+video": frozenset(("image", "video")),
    "video+image": frozenset(("image", "video")),
}

Kinds = frozenset[str]


def stated_kinds(record: Mapping[str, Any]) -> Kinds | None:
    """The kinds of media that a record states it has, all of them; None where it does not say."""
    word = stated_type(record) if is_texts(record) else record.get("media_type")
    return _KINDS.get(word) if isinstance(word, str) else None


def check_kinds(record: Mapping[str, Any], stated: Kinds) -> None:
    """
    Args:
        record: in the standard names, its media in their places.
        stated: by `stated_kinds`.

    Raises:
        BadRecord: ``bad_media``, the record has media, or places for them, of other kinds.
    """
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
    turns = (turn for key in TURN_KEYS for turn in record.get(key) or ())
    return any(has_placeholder(turn, kind) for turn in turns)
