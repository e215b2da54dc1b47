"""What becomes of every column of a source: used, carried or not used; and none is read past.

Nobody says which columns a dialect reads. A column is used if a record without it is another
conversation, or none: that is tried, once for all records with the same columns. One that is not
used is looked into in every record. Where it holds what training should see (a medium, turns, a
mask of `input_ids`, a system prompt, tools, reasoning) or is called by a word of the question, the
record is refused, unless the same stands in what is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from msgspec import structs

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import PAIR_SIDES
from packidx.io.ranges import Extent
from packidx.records.containers.tar import KEY
from packidx.records.conversation import Conversation
from packidx.records.dialects.parse import parse
from packidx.records.dialects.questions import ANSWERS
from packidx.records.dialects.sides import BESIDE
from packidx.records.dialects.standard import key_of, standard
from packidx.records.layout import CAPTIONS, UNUSED
from packidx.records.media.held import (
    EXTENSIONS,
    NUMBERS,
    is_plain,
    kind_of_name,
    media_in,
    said_in,
    texts_of,
    turns_in,
)
from packidx.records.media.references import LIST_KEYS, OBJECT, TURN_KEYS, refs_of
from packidx.records.members import MEMBERS, Members

CARRIED, IGNORED, NOT_USED = "carried", "ignored", "not used"

Record = Mapping[str, Any]

_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_GENERAL = frozenset(
    ("text", "str", "string", "list", "raw", "content", "en", "json", "description", "definition")
    + ("trajectory", "trajectorie", "trace", "step", "chain", "proces")
)  # in the singular, as far as an s makes it
_WORD_LENGTH = 12
_MEANT = {  # the last word of a column's name that says something, in the singular
    "a system prompt": ("system", "sys"),
    "tools": ("tool", "function"),
    "reasoning": ("reasoning", "thinking", "think", "thought", "rationale", "cot"),
    "a part of the question": (
        *("context", "passage", "article", "input", "query", "question", "body", "support"),
        *("fact", "knowledge", "abstract", "sentence", "snippet", "excerpt", "persona", "table"),
        *("prompt", "instruction", "hint", "lecture", "background", "premise", "hypothesis"),
        *("paragraph", "story", "history", "dialog", "dialogue", "evidence", "problem", "kwarg"),
        *("object", "schema", "ctx", "document", "ocr", "transcript", "scenario"),
    ),
}
_CHOICE, _ANSWER, _BY_ID = "a choice", "an answer", "the id of a medium"
_CHOICES = frozenset(("option", "choice", "ending", "candidate", "distractor"))
_OF_CHOICE = re.compile(
    r"(?i:(?:a|op|opt|option|choice|ans|answer|ending)[_ ]?\d|op[_ ]?[a-h])|[A-H]"
)
_ARTICLES = {"image": "an image", "video": "a video", "audio": "a sound"}
_MEDIA = {"image": "image", "img": "image", "photo": "image", "picture": "image", "pic": "image"}
_MEDIA |= {"video": "video", "clip": "video", "audio": "audio", "sound": "audio", "speech": "audio"}
_PLACES = ("path", "file", "filename", "name", "url", "uri", "link", "src", "base64", "bytes")
_MEANINGS = {word: meaning for meaning, words in _MEANT.items() for word in words}
_PLACEHOLDER = re.compile("<(?:image|video|audio)>")
_SUSPECT = "[{ \t\n<dh/iRU"  # what JSON, a marked image, a URI or base64 may begin with
_WEIGHT = {CARRIED: 0, "id": 0, IGNORED: 0, NOT_USED: 1}  # any other use outweighs these
_UNREAD = (CARRIED, "id", NOT_USED)
_ORIGINS = ("url", "URL")  # where a medium that the record holds as `jpg` is from (img2dataset)
_SIZES = ("width", "height")
_MANY = 64
_ARGUMENTS = "arguments of the chat template"
_FOR_TEMPLATE = ("chat_template_kwargs",)
_SIZED = frozenset((str, list, tuple, dict, bytes, type(None)))  # what may be empty
_OF_PAIRS = frozenset((*PAIR_SIDES, *BESIDE, *TURN_KEYS, "prompt", "response", "answer", "output"))
_FACTS = ("input_ids", "labels", *(keys[0] for keys in LIST_KEYS.values()), "tools", "system")


def word_of(name: str) -> str:
    """The word of a column's name that says what it holds: the last one, in the singular."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].rstrip("s") in _GENERAL:
        words.pop()
    last = words[-1] if words else ""
    return last.removesuffix("s") if len(last) > 2 else last


def meaning_of(name: str) -> str | None:
    """Return what a column holds by its name, a kind of medium where it is a place of one; None
    where that says nothing."""
    words = [word.lower() for word in _WORD.findall(name)]
    if len(words) > 1 and words[-1].removesuffix("s") in _PLACES and words[0] in _MEDIA:
        return _MEDIA[words[0]]
    if not _CHOICES.isdisjoint(word.removesuffix("s") for word in words):
        return _CHOICE
    if _OF_CHOICE.fullmatch(name):
        return _CHOICE
    if "system" in words and words[-1] in ("prompt", "message", "msg"):
        return _MEANINGS["system"]
    return _MEANINGS.get(word_of(name))


def merge_columns(columns: dict[str, str], others: Mapping[str, str]) -> None:
    """Add what `others` says: a column that some record uses is used, and one that some record has
    in vain is not carried."""
    for name, use in others.items():
        known = columns.get(name)
        if known is None or (_WEIGHT.get(use, 2), known) > (_WEIGHT.get(known, 2), use):
            columns[name] = use


def by_use(columns: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Columns in words: what they are used as, which are carried along, not used, and ignored."""
    named: dict[str, list[str]] = {CARRIED: [], NOT_USED: [], IGNORED: []}
    for name, use in sorted(columns.items()):
        named.setdefault(CARRIED if use == "id" else use, []).append(name)
    carried, unused, ignored = (", ".join(named.pop(use)) for use in [CARRIED, NOT_USED, IGNORED])
    used = "; ".join(f"{use}: {', '.join(names)}" for use, names in sorted(named.items()))
    return used, carried, unused, ignored


@dataclass(slots=True)
class _Rule:
    """What is known of records that have something in the same columns."""

    watched: tuple[tuple[str, str | None], ...]
    """Columns that hold something and are not used, and what they mean by their names."""
    document: str | None
    """The column of its text, which may hold a record as JSON."""


class Ledger:
    """The columns of the records of one shard.

    Args:
        layout: how its source names things; of pairs, one side.
        kind: of its container.
        columns: is given every column that is seen → what it is used as, or `CARRIED` or
            `NOT_USED`; of several uses the first that is seen.
    """

    def __init__(self, layout: Layout, kind: str, columns: dict[str, str]) -> None:
        self._layout, self._kind, self._columns = layout, kind, columns
        self._rules: dict[Any, _Rule] = {}

    def check(self, raw: Record) -> None:
        """Nothing, for a record of which everything is used that must be.

        Args:
            raw: as it stands in its shard, or as a transform returned it.

        Raises:
            BadRecord: `UNUSED`.
        """
        record = raw if MEMBERS not in raw else _flat(raw)
        held = tuple([type(value) not in _SIZED or bool(value) for value in record.values()])
        rule = self._rules.get((held, *record))
        if rule is None:
            parsed = self._parsed(record)
            rule = self._rule(record, parsed)
            if parsed is not None:  # else it is refused already, and says nothing of others
                self._rules[held, *record] = rule
        for name, meaning in rule.watched:
            value = record[name]
            if type(value) is str and meaning is None:
                if ("." not in value and value[:1] not in _SUSPECT) or is_plain(value):
                    continue
            elif type(value) in NUMBERS and meaning != _BY_ID:
                continue
            self._look(name, meaning, record)
        text = None if rule.document is None else record[rule.document]
        if isinstance(text, str) and text[:1] in ("{", "["):
            self._refuse_record(text, str(rule.document))

    def _rule(self, record: Record, parsed: Conversation | None) -> _Rule:
        """The rule of records that have something in the columns in which this one has."""
        uses = self._uses(record, parsed)
        merge_columns(self._columns, uses)
        if parsed is None:
            return _Rule((), None)
        of_pairs = self._layout.pair or not self._layout.stated_columns.isdisjoint(PAIR_SIDES)
        known = _OF_PAIRS if of_pairs else ()  # who takes one side knows of the other
        watched = tuple(
            (name, _meant(name, record, parsed))
            for name, use in uses.items()
            if use in _UNREAD and name not in known and not _is_absent(record[name])
        )
        named = (
            name
            for name, use in uses.items()
            if use == "text" and name in CAPTIONS and isinstance(record[name], str)
        )
        taken = self._layout.columns.keys() & {"text", "caption"}
        return _Rule(watched, None if taken else next(named, None))

    def _uses(self, record: Record, parsed: Conversation | None) -> dict[str, str]:
        """Return what each column is used as: of two that say the same, the first one.

        Of many columns whole blocks are tried first.
        """
        uses = {name: self._unread(name, record) for name in record}
        if parsed is None:
            return uses
        taken = {id(ref): medium.kind for medium in parsed.media for ref in refs_of(medium)}
        for name in record:
            if name.startswith(".") and id(record[name]) in taken:  # a file of a tar
                uses[name] = LIST_KEYS[taken[id(record[name])]][0]
        left, names = dict(record), [name for name in record if uses[name] in _UNREAD]
        blocks = [names] if len(names) > _MANY else [[name] for name in names]
        while blocks:
            block = blocks.pop()
            dropped = {*block}
            without = {name: value for name, value in left.items() if name not in dropped}
            other = self._parsed(without, dropped)
            if other == parsed:
                left = without
            elif len(block) == 1:
                uses[block[0]] = _use(left[block[0]], block[0], parsed, other)
            else:
                blocks += [block[: len(block) // 2], block[len(block) // 2 :]]
        return uses

    def _unread(self, name: str, record: Record) -> str:
        """Return what a column is that nobody reads."""
        value = record[name]
        if name in self._layout.ignore or name.removeprefix(".") in self._layout.ignore:
            return IGNORED
        own = key_of({name: value}, self._layout)
        if own is not None and own == key_of(record, self._layout):
            return "id"
        is_scalar = type(value) in NUMBERS or (isinstance(value, str) and len(value) <= 100)
        return CARRIED if is_scalar or _is_absent(value) else NOT_USED

    def _parsed(self, record: Record, dropped: Collection[str] = ()) -> Conversation | None:
        """Return what a record is; None where it is refused.

        Args:
            dropped: columns that it no longer has, whatever is stated of them.
        """
        layout, stated = self._layout, self._layout.columns
        if stated and not layout.stated_columns.isdisjoint(dropped):
            kept = {key: own for key, own in stated.items() if own not in dropped}
            layout = structs.replace(layout, columns=kept)
        try:
            return parse(standard(_folded(record), layout))
        except (BadRecord, RecursionError, KeyError, TypeError):
            return None  # without a column it may be of a form that nobody foresaw

    def _look(self, name: str, meaning: str | None, record: Record) -> None:
        """Refuse a record that has something in a column that it does not use."""
        what = self._held(name, meaning, record)
        parsed = None if what is None else self._parsed(record)
        if what is None or parsed is None:
            return
        uses = self._uses(record, parsed)  # of this record: values may be of other kinds
        unused = {other for other, use in uses.items() if use in (*_UNREAD, IGNORED)}
        if name in unused and not _stands_elsewhere(name, record, what, parsed, unused):
            merge_columns(self._columns, {name: NOT_USED})
            raise BadRecord(UNUSED, self._told(name, what, record))

    def _held(self, name: str, meaning: str | None, record: Record) -> str | None:
        """Return what a column holds that training should see; None where that is nothing."""
        value = record[name]
        if name.startswith(".") and (kind := kind_of_name(name)) is not None:
            return None if record.get("media_type") == "text" else kind
        if (kind := media_in(value)) is not None:
            return kind
        if meaning in LIST_KEYS and texts_of(value):
            return meaning
        ids = record.get(self._layout.columns.get("input_ids", "input_ids"))
        if isinstance(ids, list | tuple) and _is_mask(value, ids, name):
            return "a mask"
        if turns_in(value):
            return "turns"
        texts = texts_of(value)
        if meaning == _BY_ID:
            return meaning
        if name in _FOR_TEMPLATE and value:
            return _ARGUMENTS
        if isinstance(value, str):
            if meaning == "tools" and value.strip()[:1] not in ("[", "{"):
                return None
            is_word = len(value) <= _WORD_LENGTH and not any(map(str.isspace, value.strip()))
            if is_word and meaning not in (_CHOICE, _ANSWER):
                return None  # such as on, none, nan
        return meaning if texts else None

    def _told(self, name: str, what: str, record: Record) -> str:
        """Return what is wrong, and the option that leaves the column out."""
        holds = "is, by its name," if what in (*_MEANT, _CHOICE, _ANSWER, _BY_ID) else "holds"
        text = f"the column {name!r} {holds} {_ARTICLES.get(what, what)}, and nothing reads it: "
        meant = LIST_KEYS[what][0] if what in LIST_KEYS else "messages"
        stated = self._layout.columns.get(meant)
        if stated is not None and stated not in record:
            told = f"the record has no column {stated!r}, which is stated to hold its {meant}"
            return f"{text}{told}"
        return f"{text}--ignore {name} leaves it out; docs/data.md says how to read it"

    def _refuse_record(self, text: str, name: str) -> None:
        """Refuse a text that is a record itself, as JSON."""
        try:
            inner = orjson.loads(text)
            parse(standard(inner, self._layout) if isinstance(inner, dict) else inner)
        except (ValueError, BadRecord, RecursionError) as error:
            if not isinstance(error, BadRecord) or error.reason != "preference_data":
                return
        raise BadRecord(
            UNUSED,
            f"the text in {name!r} is itself a record, as JSON: a --transform reads it",
        )


def _use(value: Any, name: str, parsed: Conversation, without: Conversation | None) -> str:
    """Return what a column is used as without which a record is another conversation, or none."""
    if without is None:
        kind = None if turns_in(value) else media_in(value) or kind_of_name(name)
        return LIST_KEYS[kind][0] if kind in LIST_KEYS else "text"
    mine, others = _facts(parsed), _facts(without)
    changed = (fact for fact in _FACTS if mine[fact] != others[fact])
    sized = replace(without, text_tokens=parsed.text_tokens) == parsed
    return next(changed, "size" if sized or _same_texts(parsed, without) else "text")


def _flat(record: Record) -> dict[str, Any]:
    """A sample of a tar with a column for each of its files: their extensions."""
    members = record[MEMBERS]
    others = {name: value for name, value in record.items() if name not in (MEMBERS, KEY)}
    files = {name[len(members.key) :]: content for name, content in members.files.items()}
    return {**others, **files, KEY: record.get(KEY)}


def _folded(record: Record) -> dict[str, Any]:
    """A record as its shard has it, of one with a column for each file."""
    if KEY not in record:
        return dict(record)
    key = str(record[KEY])
    files = {key + name: record[name] for name in record if name.startswith(".")}
    own = {name: value for name, value in record.items() if not name.startswith(".")}
    return {**own, MEMBERS: Members(key, files)}


def _is_absent(value: Any) -> bool:
    return type(value) in _SIZED and not value


def _meant(name: str, record: Record, parsed: Conversation) -> str | None:
    """`meaning_of` a column's name; the URL in one called as a medium, or beside the size of an
    image, is one's. Of a record without a medium, or an answer, also what says which it has."""
    value, words = record[name], [word.lower() for word in _WORD.findall(name)]
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, str) and "://" in first[:8]:
        named = [_MEDIA[w.removesuffix("s")] for w in words if w.removesuffix("s") in _MEDIA]
        if named or {*_SIZES} <= _ends(record):
            return named[0] if named else "image"
    if not parsed.media and len(words) == 2 and words[0] in _MEDIA and words[1] == "id":
        return _BY_ID
    if re.fullmatch("[a-h]", name) and {"a", "b"} <= record.keys():
        return _CHOICE
    is_answered = parsed.is_document or any(turn.role == "assistant" for turn in parsed.turns)
    if not is_answered and parsed.turns and name in ANSWERS:
        return _ANSWER
    return meaning_of(name)


def _ends(record: Record) -> set[str]:
    """The last words of the columns' names."""
    return {re.split("[^a-z]", name.lower())[-1] for name in record}


def _facts(parsed: Conversation) -> dict[str, Any]:
    facts: dict[str, Any] = {
        keys[0]: [(m.ref, m.frame_indices) for m in parsed.media if m.kind == kind]
        for kind, keys in LIST_KEYS.items()
    }
    facts["system"] = [turn.parts for turn in parsed.turns if turn.role == "system"]
    return {
        **facts,
        "tools": parsed.tools,
        "input_ids": parsed.input_ids,
        "labels": parsed.labels,
    }


def _same_texts(one: Conversation, other: Conversation) -> bool:
    """Return whether nothing but sizes of media is different."""
    texts = [
        [[part if isinstance(part, str) else part.kind for part in turn.parts] for turn in c.turns]
        for c in (one, other)
    ]
    return texts[0] == texts[1]


def _is_mask(value: Any, ids: Any, name: str) -> bool:
    """Return whether a list has a number for each token, and says that some are not trained on or
    seen; or is called so."""
    if name.endswith(("type_ids", "special_tokens_mask")) or not isinstance(value, list | tuple):
        return False
    numbers = NUMBERS.issuperset(map(type, value))
    if numbers and all(number == 1 for number in value):
        return False
    if {"mask", "loss", "weight"} & {word.lower().rstrip("s") for word in _WORD.findall(name)}:
        return True
    values = set(value) if numbers and len(value) == len(ids) else set()
    return bool(values) and (values <= {0, 1} or -100 in values)


def _stands_elsewhere(
    name: str, record: Record, what: str, parsed: Conversation, unused: Collection[str]
) -> bool:
    """Return whether what an unused column holds is in what is used, too."""
    value = record[name]
    if what in LIST_KEYS:
        used = [
            item for key, item in record.items() if key not in unused and media_in(item) == what
        ]
        own = any(key not in unused and key.lstrip(".") in EXTENSIONS[what] for key in record)
        if own and name in _ORIGINS and isinstance(value, str):
            return True
        files = [key for key in record if key.startswith(".") and key not in unused]
        refs = [ref for medium in parsed.media for ref in refs_of(medium) if isinstance(ref, str)]
        refs += [name for key in files for name in (key[1:], f"{record[KEY]}{key}")]
        refs += [text for item in used if not isinstance(item, str) for text in texts_of(item)]
        names = [] if _has_bytes(value) else texts_of(value)
        known: dict[str, list[list[str]]] = {}
        for parts in map(_parts, refs):
            known.setdefault(parts[-1], []).append(parts)
        return bool(names) and all(
            any(_are_one(parts, other) for other in known.get(parts[-1], ()))
            for parts in map(_parts, names)
        )
    if what in ("a mask", _ARGUMENTS, _BY_ID, _ANSWER):
        return False
    asking: tuple[str, ...] = ("user", "system", "tool")
    roles = {"a part of the question": asking, _CHOICE: asking, "a system prompt": ("system",)}
    turns = [turn for turn in parsed.turns if turn.role in roles.get(what, (turn.role,))]
    said = _even(" ".join(part for turn in turns for part in turn.parts if isinstance(part, str)))
    at, told = 0, turns_in(value)
    for text in texts_of(value) if told is None else said_in(told):
        for part in _PLACEHOLDER.split(text):  # at which a turn is split, too
            if core := _even(part):
                place = re.compile(rf"(?<!\w){re.escape(core)}(?!\w)").search(said, at)
                if place is None:
                    return False
                at = place.end()
    return True


def _even(text: str) -> str:
    """A text without what says nothing of it: case, and how it is spaced."""
    return " ".join(text.split()).casefold()


def _has_bytes(value: Any) -> bool:
    if isinstance(value, OBJECT):
        return any(map(_has_bytes, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_bytes, value))
    return isinstance(value, bytes | Extent)


def _parts(name: str) -> list[str]:
    """The parts of a path or URL, the last one without its ending."""
    path = re.split("[?#]", name.strip())[0].replace("\\", "/")
    return os.path.splitext(path)[0].strip("/").split("/")


def _are_one(one: list[str], other: list[str]) -> bool:
    """Return whether two names that end alike may be one file's: one is the end of the other, or a
    URL."""
    least = min(len(one), len(other))
    is_url = any(parts[0].endswith(":") for parts in (one, other))
    return is_url or one[-least:] == other[-least:]
