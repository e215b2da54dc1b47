"""Records that no layout fits: what they hold, and the options under which one may.

What is guessed is tried: only options under which the records are conversations are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packidx.errors import BadRecord, OptionError
from packidx.format.terms import PAIR_SIDES
from packidx.records.containers.registry import has_cells
from packidx.records.conversation import Conversation
from packidx.records.dialects.parse import parse
from packidx.records.dialects.standard import standard
from packidx.records.layout import TURN_KEYS, Layout
from packidx.records.ledger import Ledger, word_of
from packidx.records.media.held import media_in, turns_in
from packidx.records.media.references import LIST_KEYS

Record = Mapping[str, Any]
Names = dict[str, str]

_USER = frozenset(
    ("user", "human", "customer", "client", "caller", "question", "q", "u", "asker", "prompter")
    + ("student", "patient", "visitor", "me", "person", "inquirer", "usr")
)
_ASSISTANT = frozenset(
    ("assistant", "gpt", "model", "bot", "agent", "answer", "a", "ai", "support", "chatbot")
    + ("teacher", "doctor", "expert", "operator", "helper", "llm", "response", "tutor")
)
_SYSTEM = frozenset(("system", "sys", "instruction", "context"))
_ASKED = ("question", "prompt", "query", "instruction", "problem", "user", "human", "customer", "q")
_ANSWERED = (
    *("answer", "response", "output", "completion", "reply", "solution"),
    *("assistant", "bot", "gpt", "agent", "a"),
)
_CAPTION = ("caption", "description", "alt")
_DOCUMENT = ("content", "body", "article", "document", "passage")
_MAX_ROLES = 5
_HIDDEN = re.compile("__.*__")  # what a tar's records hold besides what is in the file


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A layout that fits, and what says so."""

    nearest: str
    """The layout, in words."""
    layout: Layout
    sample: str
    """The first record that fits, as it is read then."""

    def options(self, given: Layout) -> list[str]:
        """Of the command, those that `given` does not have."""
        told = []
        for option, own, others in (
            ("--column", self.layout.columns, given.columns),
            ("--tag", self.layout.tags, given.tags),
        ):
            for name, value in own.items():
                if others.get(name) != value:
                    told += [option, f"{name}={value}"]
        if self.layout.pair != given.pair:
            told += ["--pair", str(self.layout.pair)]
        return told


def suggested(records: Sequence[Record], given: Layout, kind: str) -> Suggestion | None:
    """A layout under which most of `records` are conversations; None where none is found.

    Args:
        records: as they stand in their shards.
        given: the layout under which they are not.
        kind: of their shards' container.
    """
    media = [*_media_columns(records, given), {}]
    for nearest, columns, tags, pair in _guesses(records):
        for more in media:
            try:
                layout = replace(
                    given,
                    columns={**given.columns, **columns, **more},
                    tags={**given.tags, **tags},
                    pair=pair or given.pair,
                )
            except OptionError:
                continue
            read = [] if layout == given else _read(records, layout, kind, set(more))
            if 2 * len(read) > len(records):
                return Suggestion(nearest, layout, _shown(read[0]))
    return None


def _read(
    records: Sequence[Record], layout: Layout, kind: str, with_media: set[str]
) -> list[Conversation]:
    """The conversations of those records that a layout fits, on all sides that it takes."""
    layouts = [layout.of_side(side) for side in (PAIR_SIDES if layout.takes_both else (None,))]
    read = [[_conversation(record, side, kind) for side in layouts] for record in records]
    return [
        sides[0]
        for sides in read
        if sides[0] is not None and None not in sides and (not with_media or sides[0].media)
    ]


def _conversation(record: Record, layout: Layout, kind: str) -> Conversation | None:
    """What training sees of a record; None where it is not trained on, or not all of it is seen."""
    try:
        conversation = parse(standard(dict(record), layout, has_cells(kind)))
        Ledger(layout, kind, {}).check(record)
    except (BadRecord, RecursionError):
        return None
    return conversation if any(turn.role == "assistant" for turn in conversation.turns) else None


def _shown(conversation: Conversation, room: int = 200) -> str:
    """A conversation in one line of at most `room` characters."""
    said = []
    for turn in conversation.turns:
        parts = (part if isinstance(part, str) else f"<{part.kind}>" for part in turn.parts)
        role = "document" if conversation.is_document else turn.role
        said.append(f"{role}: {' '.join(''.join(parts).split())}")
    text = " | ".join(said)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _guesses(records: Sequence[Record]) -> Iterator[tuple[str, Names, Names, str | None]]:
    """Layouts in words, their columns, tags and side of pairs; the likeliest first."""
    yield "preference pairs", {}, {}, "chosen"
    for name in _columns(records):
        turns = [turn for record in records for turn in _turns(record.get(name))]
        if not turns:
            continue
        column = {} if name in TURN_KEYS else {"messages": name}
        yield "turns in a column of another name", column, {}, None
        for tags in _tags(turns):
            yield "turns with names of their own", column, tags, None
    texts = [name for name in _columns(records) if _is_text(records, name)]
    asked, answered = _named(texts, _ASKED), _named(texts, _ANSWERED)
    if asked and answered and asked != answered:
        yield "question and answer", {"prompt": asked, "response": answered}, {}, None
    if caption := _named(texts, _CAPTION):
        yield "captions", {"caption": caption}, {}, None
    document = _named(texts, _DOCUMENT)
    if document and not asked and not answered:
        yield "documents", {"text": document}, {}, None


def _columns(records: Sequence[Record]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record)
    return [name for name in names if not _HIDDEN.fullmatch(name)]


def _turns(value: Any) -> list[Record]:
    """The objects of a list of objects, which may be JSON in a text."""
    turns = turns_in(value)
    return [turn for turn in turns or () if isinstance(turn, dict)]


def _tags(turns: Sequence[Record]) -> Iterator[Names]:
    """What the turns may call their roles and contents."""
    keys = [name for name in turns[0] if all(isinstance(turn.get(name), str) for turn in turns)]
    for role in keys:
        words = list(dict.fromkeys(turn[role] for turn in turns))
        if not 1 < len(words) <= _MAX_ROLES or max(map(len, words)) > 30:
            continue
        contents = [name for name in turns[0] if name != role]
        contents.sort(key=lambda name: -sum(len(str(turn.get(name))) for turn in turns))
        if contents:
            tags = {"role_tag": role, "content_tag": contents[0], **_role_words(words)}
            yield {tag: word for tag, word in tags.items() if word not in ("role", "content")}


def _role_words(words: Sequence[str]) -> Names:
    """Which of the words is whose; only what is known by its meaning is told."""
    named = {}
    for tag, known in (
        ("user_tag", _USER),
        ("assistant_tag", _ASSISTANT),
        ("system_tag", _SYSTEM),
    ):
        own = [word for word in words if word.strip().lower() in known]
        if len(own) == 1 and own[0] != tag.removesuffix("_tag"):
            named[tag] = own[0]
    return named


def _is_text(records: Sequence[Record], name: str) -> bool:
    values = [record[name] for record in records if record.get(name) is not None]
    texts = [value for value in values if isinstance(value, str) and not _turns(value)]
    told = any(not text.isalnum() for text in texts)  # a number or an id says nothing to anybody
    return told and len(texts) == len(values) and not _kind_of_media(values)


def _named(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The first of the names that says nothing but one of the words, the likeliest word first."""
    for word in words:
        for name in names:
            if word_of(name) == word:
                return name
    return None


def _media_columns(records: Sequence[Record], given: Layout) -> list[Names]:
    """Columns of media that are called otherwise, all of them, if there are any."""
    columns: Names = {}
    for name in _columns(records):
        if any(name in keys for keys in LIST_KEYS.values()) or name in given.columns.values():
            continue
        kind = _kind_of_media([value for r in records if (value := r.get(name)) is not None])
        if kind is not None:
            columns.setdefault(LIST_KEYS[kind][0], name)
    return [columns] if columns else []


def _kind_of_media(values: Sequence[Any]) -> str | None:
    """The kind of media that all values of a column hold; None where some hold none."""
    kinds = {media_in(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else None


def described(record: Record, room: int = 300) -> str:
    """The keys of a record and what they hold, in one line of at most `room` characters."""
    names = [name for name in record if not _HIDDEN.fullmatch(str(name))]
    text = ", ".join(f"{_short(name)}: {_what(record[name])}" for name in names)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _what(value: Any, depth: int = 0) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        listed = _turns(value)
        return f"JSON text of {_what(listed)}" if listed else "text"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, list | tuple):
        first = next((item for item in value if item is not None), None)
        return "empty list" if not value else f"list of {_what(first, depth)}"
    if isinstance(value, dict) and depth < 2:
        members = [f"{_short(name)}: {_what(item, depth + 1)}" for name, item in value.items()]
        more = ", …" if len(members) > 8 else ""
        return "{" + ", ".join(members[:8]) + more + "}"
    return "object"


def _short(name: Any) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
