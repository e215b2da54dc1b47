"""Records of a shard as conversations: the one way in, for counting and for training.

A container gives a record, a transform may change it, the first dialect that matches reads it, and
leftovers are refused. Token ids win over anything else that a record holds, then messages, then
texts of a known form, then questions with answers, then captions, then a text alone. Nothing behind
this module sees a dialect.

A column that the dialect does not consume is a leftover if it holds a medium (bytes, a file's name,
base64), objects, or prose. So is every key of a message or a content part that nothing reads. Other
values, such as numbers, ids and single words, are carried along, and so is a text that stands word
for word in a column that is read. Names of columns mean nothing, but for the id of a medium in a
record that has none: its image lies somewhere else.

Example: of `{"question": "Why?", "answer": "So.", "cot": "It is so.", "split": "train"}` the column
`cot` is a leftover, and `split` is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout, RecordRange
from packidx.format.terms import PAIR_SIDES
from packidx.io.ranges import Extent
from packidx.records.containers.base import Locator, Record
from packidx.records.containers.registry import DEFAULT as JSONL
from packidx.records.containers.registry import get_container
from packidx.records.conversation import Conversation, Media, to_record
from packidx.records.dialects.documents import read_mmc4, read_obelics, read_text, read_tokens
from packidx.records.dialects.messages import (
    OF_LOONGFORGE,
    read_finevision,
    read_loongforge,
    read_messages,
)
from packidx.records.dialects.preference import BESIDE, refuse_preferences, take_side
from packidx.records.dialects.qa import FORMS, QUESTIONS, read_answer, read_caption
from packidx.records.dialects.raw_record import (
    CAPTIONS,
    IDS,
    SYSTEM,
    UNUSED,
    Dialect,
    RawRecord,
    hidden_columns,
    key_of,
    own_columns,
    standard_columns,
)
from packidx.records.media import references as refs
from packidx.records.media.opener import MediaOpener

Change = Callable[[dict[str, Any], int], dict[str, Any]]
"""(a record as it stands in its file, its row) → the record that is taken for it."""


_SYSTEM = frozenset(("tools", *SYSTEM))
DIALECTS = (
    Dialect(frozenset(("input_ids", "labels")), read_tokens),
    Dialect(frozenset(), refuse_preferences),
    *(Dialect(_SYSTEM | {key}, partial(read_messages, key)) for key in refs.TURN_KEYS),
    Dialect(_SYSTEM | {"texts"}, read_finevision),
    Dialect(frozenset(("texts", "images")), read_obelics),
    Dialect(_SYSTEM | OF_LOONGFORGE, read_loongforge),
    Dialect(frozenset(("text_list", "image_info")), read_mmc4),
    *(
        Dialect(_SYSTEM | {name for name in form if name} | {"history"}, partial(read_answer, form))
        for form in FORMS
    ),
    *(Dialect(_SYSTEM | {name}, partial(read_caption, name)) for name in CAPTIONS),
    *(Dialect(frozenset((name,)), partial(read_text, name)) for name in ("text", "txt")),
)
"""Dialects in the order in which they are tried."""

USED, CARRIED, IGNORED, NOT_USED = "used", "carried", "ignored", "not used"
"""Uses of a column."""

_ORDER = (CARRIED, IGNORED, NOT_USED, USED)
_IDS_OF_MEDIA = {f"{kind}_id": kind for kind in refs.LIST_KEYS}
_SHARED = frozenset((*IDS, "_text_tokens"))
_WITH_MEDIA = _SHARED | {
    "mm_inputs_meta",
    *(key for keys in refs.LIST_KEYS.values() for key in keys),
}
_OF_PAIRS = frozenset((*PAIR_SIDES, *BESIDE, *refs.TURN_KEYS, "prompt"))
_MASKS = frozenset(("loss_mask", "loss_weights", "assistant_masks", "completion_mask"))


def merge_columns(columns: dict[str, str], others: Mapping[str, str]) -> None:
    """Add the columns of other records; of two uses of a column the later in `_ORDER` counts."""
    for name, use in others.items():
        columns[name] = max(columns.get(name, use), use, key=_ORDER.index)


class ReadRecord(NamedTuple):
    """A record that was read."""

    locator: Locator
    key: str | None
    """The name in its shard, or its own id."""
    data: dict[str, Any] | None
    """The record as it stands in its file, or as the transform returned it; None if it cannot be
    decoded."""
    conversation: Conversation | None = None
    """The conversation; None if the record is of no dialect, or something in it is wrong."""
    error: BadRecord | None = None
    """The reason why there is no conversation."""
    raw: RawRecord | None = None
    """Columns and media; None if it has none that could be read."""


class RecordReader:
    """Reads the records of one source.

    Args:
        layout: how the source names things.
        change: what a record becomes; its key stays the file's.
        columns: is given each column and its use, and records with leftovers are refused
            (`leftovers`); None looks at no columns.
        has_media: True if records of the source may have media: only where none has is a
            placeholder text.
    """

    def __init__(
        self,
        layout: Layout = DEFAULT,
        change: Change | None = None,
        columns: dict[str, str] | None = None,
        *,
        has_media: bool = False,
    ) -> None:
        self.layout, self._change, self._has_media = layout, change, has_media
        self._columns, self._ignored = columns, frozenset(layout.ignore)
        self._hidden = hidden_columns(layout)

    def read(self, record: Record) -> ReadRecord:
        """Return a record and its conversation, or what is wrong with it."""
        at, data, key = record.locator, record.data, record.key
        if isinstance(data, BadRecord):
            return ReadRecord(at, key, None, error=data)
        if key is None:
            key = key_of(data, self.layout)
        raw: RawRecord | None = None
        try:
            if self._change is not None:
                data = self._change(data, at.row)
            files = record.key, record.members
            raw = _raw_record(data, self.layout, *files, has_media=self._has_media)
            try:
                conversation = _read_conversation(raw)
            finally:  # leftovers of a record that is wrong are leftovers, too
                if self._columns is not None:
                    self._refuse_leftovers(data, raw, self._columns)
        except BadRecord as error:
            return ReadRecord(at, key, data, error=error.with_traceback(None), raw=raw)
        except RecursionError as error:
            text = f"the record is too large: {type(error).__name__}"
            return ReadRecord(at, key, data, error=BadRecord("bad_record", text))
        return ReadRecord(at, key, data, conversation, raw=raw)

    def _refuse_leftovers(
        self, record: Mapping[str, Any], raw: RawRecord, columns: dict[str, str]
    ) -> None:
        """Raise a BadRecord (`UNUSED`) if a record has a leftover; of one of no dialect, only keys
        are checked."""
        left: dict[str, str] = {}
        has_media = any(raw.listed.values()) or raw.has_medium  # first: it adds to `consumed`
        if raw.dialect is not None and raw.dialect.columns:
            consumed = raw.dialect.columns | raw.consumed
            consumed |= _SHARED if "input_ids" in consumed else _WITH_MEDIA
            if self.layout.pair or not self.layout.stated_columns.isdisjoint(PAIR_SIDES):
                consumed |= _OF_PAIRS
            if self.layout.columns:
                consumed = consumed - self._hidden | own_columns(self.layout, consumed)
            if not record.keys() <= columns.keys():
                for name in record:
                    use = USED if name in consumed else CARRIED
                    columns.setdefault(name, IGNORED if name in self._ignored else use)
            for name, value in record.items():
                if type(value) in refs.NUMBERS:  # first: of many columns most have no value
                    continue
                if name not in consumed and name not in self._ignored:
                    what = refs.content_in(value) or _mask_in(name, value, record.get("input_ids"))
                    if what is not None and not _is_said(value, record, consumed):
                        left[name] = what
            for name, kind in _IDS_OF_MEDIA.items():
                if name in record and not (
                    refs.is_empty(record[name]) or name in self._ignored or has_media
                ):
                    left[name] = f"the id of a medium ({kind}) that the record does not hold"
        if raw.unknown_keys:
            keys = (key for key in raw.unknown_keys if key not in self._ignored)
            left = dict.fromkeys(keys, "a key of a message") | left
        if left:
            merge_columns(columns, dict.fromkeys(left, NOT_USED))
            raise _unused_error(left | raw.refused)


def _unused_error(left: Mapping[str, str]) -> BadRecord:
    """Return the error of a record with columns or keys (name → what it is) that are left."""
    said = ", ".join(f"{name!r} ({what})" for name, what in left.items())
    text = f"nothing reads {said}: --ignore {','.join(left)} leaves it out"
    return BadRecord(UNUSED, f"{text}, a --transform says what is meant (docs/data.md)")


def _mask_in(name: str, value: Any, ids: Any) -> str | None:
    """Return "a mask" for a list that says which token ids are trained on."""
    if not isinstance(ids, list) or not isinstance(value, list) or name.endswith("type_ids"):
        return None
    is_binary = 0 in value and 1 in value and all(item in (0, 1) for item in value)
    is_mask = len(value) == len(ids) and (-100 in value or is_binary)
    return "a mask" if is_mask or name in _MASKS else None


def _is_said(value: Any, record: Mapping[str, Any], consumed: Collection[str]) -> bool:
    """Return True for texts that stand word for word in columns that are read."""
    texts = value if isinstance(value, list | tuple) else [value]
    said = [record[own] for own in consumed if type(record.get(own)) is str]
    return all(type(text) is str and text in said for text in texts)


def _raw_record(
    record: Any,
    layout: Layout = DEFAULT,
    key: str | None = None,
    members: Mapping[str, bytes | Extent] | None = None,
    *,
    has_media: bool = False,
) -> RawRecord:
    """Return a decoded record with its columns by their standard names; of a preference pair, the
    side that the layout takes. Arguments are those of `RawRecord`."""
    if not isinstance(record, refs.OBJECT):
        raise BadRecord("bad_record", f"the record is {refs.name_type(record)}, not an object")
    columns = standard_columns(layout, record)
    if layout.pair is not None:
        columns, layout = take_side(columns, layout), replace(layout, tags={})
    return RawRecord(columns, layout, key, members, has_media=has_media)


def _read_conversation(raw: RawRecord) -> Conversation:
    """Return the conversation of a record, and note its dialect in it; ``no_messages`` if none."""
    for dialect in DIALECTS:
        raw.dialect = dialect
        if (conversation := dialect.read(raw)) is not None:
            if (stated := raw.stated_kinds) is not None and conversation.turns:
                actual = {medium.kind for medium in conversation.media}
                if actual != stated or conversation.has_literal:
                    has = " and ".join(f"{kind}s" for kind in sorted(actual)) or "no media"
                    says = f"media_type says {'+'.join(sorted(stated)) or 'text'}"
                    raise BadRecord("bad_media", f"the record's {says}, but it has {has}")
            if (meta := raw.columns.get("mm_inputs_meta")) is not None and conversation.turns:
                refs.state_facts(meta, conversation.media)
            if raw.refused:
                raise _unused_error(raw.refused)
            return conversation
    raw.dialect = None
    asks = any(raw.columns.get(name) for name in QUESTIONS)
    cure = "name the column that holds the turns" + ", or the answer (--column response=…)" * asks
    keys = ", ".join(name for name in map(str, raw.columns) if not name.startswith("__"))
    text = f"the record has none of {', '.join(refs.TURN_KEYS)}, only {keys:.200}: {cure}"
    raise BadRecord("no_messages", text)


def parse_record(record: Any, layout: Layout = DEFAULT, *, has_media: bool = False) -> Conversation:
    """Return a raw record, whose images may also be bytes or opened PIL images, as a conversation,
    or raise a BadRecord. Arguments are those of `RawRecord`."""
    return _read_conversation(_raw_record(record, layout, has_media=has_media))


def read_records(
    path: str, record_range: RecordRange, reader: RecordReader, kind: str = JSONL
) -> Iterator[ReadRecord]:
    """Yield the records of one range of a shard, as many as the scan counted; a SourceError if the
    shard cannot be read, or is no longer what was scanned."""
    return map(reader.read, get_container(kind, reader.layout.delimiter).read(path, record_range))


def opened_record(record: ReadRecord, opener: MediaOpener) -> dict[str, Any]:
    """Return a record for an encoder, its media opened.

    Whatever its dialect is, it has OpenAI-style ``messages`` (``{"type": "image", "image": …}`` in
    place of each image, with the options that ask for another one than its file) or ``input_ids``,
    and all media in order in ``images`` (or ``image``, where the record has that), ``videos`` and
    ``audios``. Its own columns are there, too. Of a record of no dialect they are all there is, its
    lists of media opened.

    Raises:
        BadRecord: it could not be decoded, or a medium cannot be opened.
    """
    raw = record.raw
    if raw is None:
        raise record.error or BadRecord("bad_record", "the record has no columns")
    written: dict[str, Any] = {}
    if record.conversation is None:
        listed = ((kind, entry) for kind, entries in raw.listed.items() for entry in entries)
        media = tuple(opener.medium(raw.medium(kind, entry)) for kind, entry in listed)
    else:
        conversation = opener.open(record.conversation)
        written, media = to_record(conversation, _part_of), conversation.media
    for kind, (several, single) in refs.LIST_KEYS.items():
        opened = [medium.ref for medium in media if medium.kind == kind]
        key = single if raw.columns.get(single) else several
        if opened or key in raw.columns:
            is_one = key == single and not isinstance(raw.columns[key], list)
            written[key] = opened[0] if is_one and opened else opened
    return {**raw.columns, **written}


def _part_of(medium: Media) -> dict[str, Any]:
    """Return an opened medium as a content part. A video knows its facts; its frames do not."""
    facts = medium.stated if isinstance(medium.ref, list) else {}
    return {"type": medium.kind, medium.kind: medium.ref, **facts, **medium.requests}


def encoder_input(
    record: ReadRecord, opener: MediaOpener, encode: Any
) -> Conversation | dict[str, Any]:
    """Return a record for an encoder, its media opened: the conversation, where it takes that."""
    if getattr(encode, "takes_conversations", False) and record.raw is not None:
        if record.conversation is None:
            raise record.error or BadRecord("bad_record", "no conversation")
        return opener.open(record.conversation)
    return opened_record(record, opener)
