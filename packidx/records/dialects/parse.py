"""Raw records → `Conversation`: the first dialect that matches reads.

Token ids win over anything else that a record holds, then messages, then texts of a known form,
then questions with answers, then captions, then a text alone.

Example: ``{"question": "Who?", "answer": "A cat.", "image": "a.png"}`` has neither messages nor
texts, so `QuestionAnswer` reads it: image and question are the user's, the answer the assistant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout
from packidx.io.ranges import Extent
from packidx.records.conversation import Conversation
from packidx.records.dialects.caption import Caption
from packidx.records.dialects.finevision import FineVision
from packidx.records.dialects.interleaved import Mmc4, Obelics
from packidx.records.dialects.loongforge import LoongForge
from packidx.records.dialects.messages import Messages
from packidx.records.dialects.preference import Preference, take_side
from packidx.records.dialects.qa import FORMS, QUESTIONS, QuestionAnswer
from packidx.records.dialects.raw_record import Dialect, RawRecord
from packidx.records.dialects.text import Text
from packidx.records.dialects.tokens import TokenIds
from packidx.records.layout import CAPTIONS, standard_columns
from packidx.records.media.references import OBJECT, TURN_KEYS, named

DIALECTS: tuple[Dialect, ...] = (
    TokenIds(),
    Preference(),
    *map(Messages, TURN_KEYS),
    FineVision(),
    Obelics(),
    LoongForge(),
    Mmc4(),
    *(QuestionAnswer(*form) for form in FORMS),
    *map(Caption, CAPTIONS),
    *map(Text, ("text", "txt")),
)
"""Dialects in the order in which they are tried."""


def raw_record(
    record: Any,
    layout: Layout = DEFAULT,
    key: str | None = None,
    members: Mapping[str, bytes | Extent] | None = None,
    *,
    has_media: bool = False,
) -> RawRecord:
    """Return a decoded record with its columns by their standard names; of a preference pair, the
    side that the layout takes. Arguments are those of `RawRecord`.

    Raises:
        BadRecord: ``bad_record``, ``bad_json``, ``no_messages``, ``no_pair`` or ``bad_pair``.
    """
    if not isinstance(record, OBJECT):
        raise BadRecord("bad_record", f"the record is {named(record)}, not an object")
    columns = standard_columns(layout, record)
    if layout.pair is not None:
        columns, layout = take_side(columns, layout), replace(layout, tags={})
    return RawRecord(columns, layout, key, members, has_media=has_media)


def read(raw: RawRecord) -> Conversation:
    """Return the conversation of a record, and note its dialect in it.

    Raises:
        BadRecord: ``no_messages``, it is of no dialect; or as `Dialect.read`.
    """
    for dialect in DIALECTS:
        raw.dialect = dialect
        if (conversation := dialect.read(raw)) is not None:
            if (stated := raw.stated_kinds) is not None and conversation.turns:
                actual = {medium.kind for medium in conversation.media}
                if actual != stated or conversation.has_literal:
                    has = " and ".join(f"{kind}s" for kind in sorted(actual)) or "no media"
                    says = f"media_type says {'+'.join(sorted(stated)) or 'text'}"
                    raise BadRecord("bad_media", f"the record's {says}, but it has {has}")
            return conversation
    raw.dialect = None
    asks = any(raw.columns.get(name) for name in QUESTIONS)
    cure = "name the column that holds the turns" + ", or the answer (--column response=…)" * asks
    keys = ", ".join(name for name in map(str, raw.columns) if not name.startswith("__"))
    text = f"the record has none of {', '.join(TURN_KEYS)}, only {keys:.200}: {cure}"
    raise BadRecord("no_messages", text)


def parse(record: Any, layout: Layout = DEFAULT, *, has_media: bool = False) -> Conversation:
    """Return a raw record as a conversation.

    Args:
        record: a decoded JSON object; image references may also be bytes or opened PIL images.
        layout: how its source names things.
        has_media: as of `RawRecord`.

    Raises:
        BadRecord: ``bad_record``, ``no_messages``, ``bad_turn``, ``unknown_role``, ``bad_media``,
            ``media_mismatch``, ``bad_text_tokens``, ``bad_meta``, ``bad_input_ids``,
            ``bad_labels``, ``preference_data``, ``no_pair`` or ``bad_pair``.
    """
    return read(raw_record(record, layout, has_media=has_media))
