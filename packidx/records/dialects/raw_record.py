"""One record while a dialect reads it.

A placeholder (``<image>``, ``<video>``, ``<audio>``) in any text stands for the next entry of the
record's own list (``image``/``images`` …), as does a content part without a reference. A record
without such lists may have its media in columns that public data sets have:

- the files of its WebDataset sample: each placeholder takes the next one of its kind;
- ``jpg``, ``png`` and the like: an image's bytes, as in Parquet that img2dataset wrote;
- ``file_name``, ``image_file_name``, ``file_names`` and so on: files beside the metadata of an
  `imagefolder`, as `datasets` documents them;
- ``URL``, or ``url`` beside a caption, as in LAION's tables: where an image was.

Example: in ``{"text": "<image> A cat. <image>", "images": ["a.png", "b.png"]}`` the text becomes
``(a.png, " A cat. ", b.png)``, and a third image in the list would reject the record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import DEFAULT, Layout
from packidx.format.terms import COLUMNS
from packidx.io.ranges import Extent
from packidx.records.conversation import Conversation, Media, Turn
from packidx.records.media import references as refs

Parts = tuple[str | Media, ...]

_BYTES = tuple(sorted(refs.EXTENSIONS["image"]))
_FILES = {
    name: prefix or None
    for prefix in ("", *refs.LIST_KEYS, *(f"{kind}s" for kind in refs.LIST_KEYS))
    for name in (f"{prefix}_file_name".strip("_"), f"{prefix}_file_names".strip("_"))
}
URLS = ("URL", "url")
"""Columns of where the image of a caption was."""
MEDIA_COLUMNS = frozenset(
    (*(k for keys in refs.LIST_KEYS.values() for k in keys), *_BYTES, *_FILES)
)
"""Columns that show that a data set's records have media, even where one of them is empty."""
_TEXTS = frozenset((*refs.TURN_KEYS, "texts", "text_list"))

_PLACEHOLDER, _TWICE = (re.compile(p) for p in ("<(image|video|audio)>", "<<(image|video|audio)>>"))
_SHOWN = "image|img|pic|picture|photo|video|vid|frame|vision|media|audio|sound|speech"
_NEUTRAL = "soft|pad|tokens?|placeholder|here|start|end|begin|content|context|[be]os|of|insert|the"
_INNER = r"[a-z][\w:#-]*(?: [\w:#-]+){0,3}"
_BRACKETS = re.compile(
    rf"<\|?(?P<tag>{_INNER}) ?/?\|?>|(?<![\w\])])\[(?P<name>{_INNER})\](?![\[(:]|http)",
    re.IGNORECASE,
)
_MEDIUM, _OTHER = re.compile(rf"(?:{_SHOWN})s?"), re.compile(_NEUTRAL)
_SPECIAL = re.compile(
    r"<\|endoftext\d+\|>|<\|?[bes]o[aiv]\|?>|<im_(?:patch|start|end)>", re.IGNORECASE
)  # and no <|im_end|>, which ends a message
_WORD = rf"(?:{_SHOWN})s?(?:[-_ :#]?\d+)?"
_TEMPLATED = re.compile(
    rf"(?<![\w$\\}}{{])(?:\{{\{{? *{_WORD} *\}}|%{_WORD}%|__{_WORD}__|\${_WORD}\$)", re.IGNORECASE
)
"""Placeholders that prompt templates write for a medium."""


class Dialect(NamedTuple):
    """A form that records have."""

    columns: frozenset[str]
    """Standard names of the columns that it consumes. All other columns are leftovers."""
    read: Callable[[RawRecord], Conversation | None]
    """Record → its conversation, None if it is of another dialect, or a BadRecord."""


class RawRecord:
    """A record's columns, and its media in order of appearance.

    Args:
        columns: the record's columns by their standard names.
        layout: how its source names things.
        key: name of its sample in the container; begins the names of `members`.
        members: files beside it, by their whole names.
        has_media: True if other records of its source have media: then its own may be missing, and
            a placeholder is not text.

    Attributes:
        dialect: the one that reads it; None before it is read, or if there is none.
        consumed: columns that were read besides those of the dialect.
        refused: columns that ask for something else than is read, and what they are.
        unknown_keys: keys of messages, content parts and media that have a value and that nothing
            reads.
        has_medium: True if a medium was read.
        has_literal: True if a text holds a placeholder, and nothing in the record can be a medium.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        layout: Layout = DEFAULT,
        key: str | None = None,
        members: Mapping[str, bytes | Extent] | None = None,
        *,
        has_media: bool = False,
    ) -> None:
        self.columns, self.layout, self.has_media = columns, layout, has_media
        self.dialect: Dialect | None = None
        self.consumed: set[str] = set()
        self.refused: dict[str, str] = {}
        self.unknown_keys: list[str] = []
        self.has_medium = self.has_literal = False
        self._is_sample, self._start = members is not None, len(key or "") + 1
        ignored = {name.removeprefix(".") for name in layout.ignore} if members else ()
        kept = (members or {}).items()
        self._members = {name: file for name, file in kept if name[self._start :] not in ignored}
        self._named: set[str] = set()  # members that the record names, or placeholders stand for
        self._is_inferred = False
        self._in_parts: dict[str, list[Any]] = {}  # media that content parts name
        self._used: dict[str, int] = {}  # entries of lists, by placeholders

    @cached_property
    def listed(self) -> dict[str, list[Any]]:
        """Media that placeholders stand for, by kind."""
        columns = self.columns
        listed = {
            kind: refs.media_entries(columns, kind)[1]
            for kind, keys in refs.LIST_KEYS.items()
            if not columns.keys().isdisjoint(keys)
        }
        if any(listed.values()):
            return listed
        if self._members and self.stated_kinds != frozenset():
            self._is_inferred = True
            for kind in refs.LIST_KEYS:
                names = [name for name in self._members if refs.kind_of_name(name) == kind]
                if len({re.sub(r"\d+\.", ".", name) for name in names}) == 1:
                    names.sort(key=lambda name: (len(name), name))  # tars may have 10 before 2
                listed |= {kind: names} if names else {}
        elif all(columns.get(name) is None for name in _TEXTS):
            listed |= self._listed_by_columns()
        return listed

    def _listed_by_columns(self) -> dict[str, list[Any]]:
        """Return the media of columns that hold files' names, an image's bytes, or its URL."""
        columns = self.columns
        listed: dict[str, list[Any]] = {}
        for column, prefix in _FILES.items():
            if not (value := columns.get(column)):
                continue
            names = [name for name in (value if isinstance(value, list) else [value]) if name]
            if wrong := next((name for name in names if not isinstance(name, str)), None):
                raise BadRecord("bad_media", f"{column!r} has {refs.name_type(wrong)}, no name")
            kinds = [prefix.removesuffix("s") if prefix else refs.kind_of_name(n) for n in names]
            for name, kind in zip(names, kinds, strict=True):
                if kind is not None:
                    listed.setdefault(kind, []).append(name)
            self.consumed |= set() if None in kinds else {column}
        if listed:
            return listed
        held = [name for name in _BYTES if isinstance(columns.get(name), (bytes, *refs.OBJECT))]
        if not held and (columns.get("caption"), columns.get("TEXT")) != (None, None):
            held = [name for name in URLS if columns.get(name) and type(columns[name]) is str][:1]
        self.consumed.update(held)
        return {"image": [columns[name] for name in held]} if held else {}

    def list_media(self, kind: str, entry: Any) -> None:
        """Add an entry to the record's media of a kind."""
        listed = self.listed
        if self._is_inferred:
            self._is_inferred = False
            listed.clear()
        listed.setdefault(kind, []).append(entry)

    @cached_property
    def stated_kinds(self) -> frozenset[str] | None:
        """Kinds of media that a WebDataset sample, or a record of ``texts``, says it has; None if
        it does not say."""
        columns = self.columns
        has_texts = columns.get("texts") is not None and refs.turn_key(columns) is None
        if not (self._is_sample or "texts" in columns or "text_list" in columns):
            return None
        words = [columns.get("media_type"), columns.get("media") if has_texts else None]
        word = next((word for word in words if word is not None), None)
        kinds = frozenset(word.split("+")) if isinstance(word, str) else frozenset(("",))
        return frozenset() if word == "text" else kinds if kinds <= refs.LIST_KEYS.keys() else None

    @cached_property
    def may_have_media(self) -> bool:
        """True if a column besides the texts may name a medium: by its own name, or since it holds
        one, or bytes or objects of unknown content."""
        others = self.columns.keys() - _TEXTS
        values = [self.columns[name] for name in others]
        return (
            bool(self.listed)
            or not MEDIA_COLUMNS.isdisjoint(others)
            or any(_is_opaque(value) or refs.media_in(value) is not None for value in values)
        )

    @property
    def text_tokens(self) -> int | None:
        """The record's own count, which tables in text hold as digits."""
        stated = self.columns.get("_text_tokens")
        if isinstance(stated, str) and re.fullmatch("-?[0-9]{1,20}", stated):
            stated = int(stated)
        return refs.check_integer(stated, 0, refs.MAX_TOKENS, "_text_tokens", "bad_text_tokens")

    # -- media in order of appearance --------------------------------------------------------------

    def split(self, text: str) -> Parts:
        """Return a text and the media that its placeholders stand for, in order."""
        if "<" not in text:
            return (text,) if text else ()
        if "<img>" in text and (kind := refs.media_in(text)) is not None:
            text = f"a text, in <img>…</img>, holds a medium ({kind}) that no field refers to"
            cure = f"add it to the record's {kind}s and put <{kind}> in the text"
            raise BadRecord(UNUSED, f"{text}: {cure}, or use a --transform")
        if _PLACEHOLDER.search(text) is None:
            return (text,)
        is_stated = self.columns.get("mm_inputs_meta") is not None
        if not is_stated and not self.has_media and not self.may_have_media:
            self.has_literal = True
            return (text,)
        if "<<" in text and (mark := _TWICE.search(text)) is not None:
            raise BadRecord("media_mismatch", f"a text has {mark[0]!r}: write <{mark[1]}>")
        pieces = enumerate(_PLACEHOLDER.split(text))
        return tuple(self.next(piece) if number % 2 else piece for number, piece in pieces if piece)

    def next(self, kind: str) -> Media:
        """Return the medium that the next placeholder of a kind stands for."""
        number, listed = self._used.get(kind, 0), self.listed.get(kind, ())
        self._used[kind] = number + 1
        self.has_medium = True
        if number >= len(listed):
            return Media(kind)  # refused by `check`
        medium = self.medium(kind, listed[number])
        if medium.ref is None:
            raise BadRecord("bad_media", f"an entry of the record's {kind}s names nothing")
        return medium

    def part(self, kind: str, part: Any) -> Media:
        """Return the medium of a content part, which may name none itself."""
        medium = self.medium(kind, part)
        if medium.ref is None:
            return self.next(kind)
        self._in_parts.setdefault(kind, []).append(medium.ref)
        return medium

    def medium(self, kind: str, entry: Any) -> Media:
        """Return the medium that an entry of a list stands for."""
        self.note_unknown(entry, refs.PART_KEYS)
        medium = refs.medium_of(kind, entry)
        medium.ref = self._find_member(medium.ref) if self._members else medium.ref
        self.has_medium = True
        return medium

    def note_unknown(self, entry: Any, known: frozenset[str]) -> None:
        """Note the keys of a message, a part or an entry that have a value and are not `known`."""
        if type(entry) is str or not isinstance(entry, refs.OBJECT):
            return
        if not entry.keys() <= known:
            self.unknown_keys += [
                key for key, value in entry.items() if key not in known and not refs.is_empty(value)
            ]
        for key in refs.REFERENCE_KEYS if known is refs.PART_KEYS else ():
            self.note_unknown(entry.get(key), refs.PART_KEYS)

    def _find_member(self, ref: Any) -> Any:
        """Return the content of the sample's file that is named by its whole name, or by its
        extension; any other reference as it is."""
        if isinstance(ref, list):
            return [self._find_member(each) for each in ref]
        if not isinstance(ref, str):
            return ref
        same = (n for n in self._members if n == ref or n[self._start :].lower() == ref.lower())
        if (name := ref if ref in self._members else next(same, None)) is None:
            return ref
        self._named.add(name)
        return self._members[name]

    def place(self, turns: list[Turn]) -> None:
        """Put media without a place before the first user's words, kind by kind: those of the
        record's own lists, and the sample's only file. Raise ``media_mismatch`` if a text has
        another tool's placeholder."""
        at = next((n for n, turn in enumerate(turns) if turn.role == "user"), None)
        if at is None:
            return
        shown = {part.kind for turn in turns for part in turn.parts if isinstance(part, Media)}
        says_kinds = bool(self._members) and self.stated_kinds is not None
        front = [
            self.next(kind)
            for kind in refs.LIST_KEYS
            if (held := self.listed.get(kind)) and kind not in self._used and kind not in shown
            if not self._is_inferred
            or (len(held) == 1 and (says_kinds or len(self._media_members()) == 1))
            for _ in held
        ]
        places = (place for turn in turns for place in _unknown_places(turn, not front, shown))
        place = next(places, None)
        if place is not None and (
            front or shown or (self.has_media and place.startswith("<")) or self.may_have_media
        ):
            text = f"a text has {place!r}: only <image>, <video> and <audio> stand for media"
            raise BadRecord("media_mismatch", f"{text}; a --transform writes them")
        if front:
            turns[at] = replace(turns[at], parts=(*front, *turns[at].parts), text_as_list=False)

    def check(self) -> None:
        """Raise ``media_mismatch`` if the record has more or fewer placeholders than media, and
        `UNUSED` if a file of its sample has no place."""
        if self._members and self.stated_kinds != frozenset():
            self._check_members()
        for kind in {**self.listed, **self._used}:
            held: list[Any] = self.listed.get(kind, [])
            used, listed = self._used.get(kind, 0), len(held)
            if not used and self._in_parts.get(kind, []) in (held, [held]):  # as encoders get it
                continue
            if used > listed or (used < listed and not self._is_inferred):
                text = f"{used} placeholder(s) for {kind}s but {listed} {kind}(s) in the record"
                others = [other for other, entries in self.listed.items() if entries]
                if not listed and others:
                    text += f"; it has {others[0]}s, for which <{others[0]}> stands"
                elif not listed:
                    text += f"; where <{kind}> is text, --ignore {kind}s says so"
                raise BadRecord("media_mismatch", text)

    def _media_members(self) -> list[str]:
        return [
            n
            for n in self._members
            if refs.media_in(n) is not None or n.lower().endswith(refs.PAGES)
        ]

    def _check_members(self) -> None:
        """Raise a BadRecord (`UNUSED`) if a file of the sample has no place in the record."""
        if self._is_inferred and self._in_parts and self._used:
            text = "the record names some files of its sample and has placeholders for others"
            raise BadRecord("media_mismatch", f"{text}: name all of them")
        left = [name for name in self._media_members() if name not in self._named]
        if self._in_parts or not self._is_inferred:
            left = [name for name in left if refs.kind_of_name(name) is not None]
        if left:
            names = ",".join(sorted(name[self._start :] for name in left))
            text = f"no text and no column of the record names {names}, files of its sample"
            raise BadRecord(UNUSED, f"{text}: name them, or --ignore {names} leaves them out")


def _is_opaque(value: Any) -> bool:
    """Return True if a value is, or holds, something that is not plain JSON."""
    if isinstance(value, refs.OBJECT):
        return any(map(_is_opaque, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_opaque, value))
    return value is not None and not isinstance(value, str | int | float)


def _names_medium(mark: re.Match[str]) -> bool:
    """Return True if words in brackets stand for a medium in another tool: one of them is a word
    for a medium, and they are joined (``my_image_1``), or the others say nothing (``image here``).
    """
    inner = mark["tag"] or mark["name"]
    words = [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", inner)]
    others = [word for word in words if not _MEDIUM.fullmatch(word)]
    is_joined = " " not in inner and inner in (inner.lower(), inner.upper())
    is_known = len(others) < len(words) and (is_joined or all(map(_OTHER.fullmatch, others)))
    return is_known or _SPECIAL.fullmatch(mark[0]) is not None


def _unknown_places(turn: Turn, is_placed: bool, shown: Collection[str]) -> Iterator[str]:
    """Yield the placeholders of other tools in a turn.

    Args:
        is_placed: all the record's media have a place. Then only those count that begin a line of
            the user's, and numbers (``<image 1>``) refer to media that are `shown`.
    """
    for text in turn.texts if turn.role == "user" or not is_placed else ():
        for mark in _BRACKETS.finditer(text) if "<" in text or "[" in text else ():
            closing = f"</{mark['tag']}"
            if not _names_medium(mark) or closing in text[mark.end() + 1 :]:
                continue
            begins = text[: mark.start()].rstrip(" \t")[-1:] in ("", "\n")
            refers = shown and "|" not in mark[0] and re.search(r"\d", mark[0])
            if not is_placed or (begins and not refers):
                yield mark[0]
        if not is_placed and turn.role == "user":
            yield from (mark[0] for mark in _TEMPLATED.finditer(text))


# -- columns by their standard names ---------------------------------------------------------------

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
    "messages": (*refs.TURN_KEYS, "texts", "text_list"),
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
    (*refs.TURN_KEYS, "texts", "input_ids", "labels", "mm_inputs_meta", "history")
    + ("images", "image", "videos", "video", "audios", "audio")
)


def standard_columns(layout: Layout, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record's columns by their standard names, without ignored ones; the record itself if
    nothing has to change, or a BadRecord (``no_messages``, ``bad_json``).

    JSON in text, as tables hold lists of turns, is decoded; an object of equally long lists, as
    `datasets` once stored lists of turns, becomes a list of objects.
    """
    if layout.ignore:
        record = {name: value for name, value in record.items() if name not in layout.ignore}
    return _decode_structured(_rename_columns(layout, record) if layout.columns else record)


def key_of(record: Mapping[str, Any], layout: Layout) -> str | None:
    """Return the id of a record as it stands in its shard; None if none is text or an integer.

    No float: an integer of more than 64 bits arrives as one, and two of them may look alike.
    """
    for name in (layout.columns["id"],) if "id" in layout.columns else IDS:
        value = record.get(name) if name not in layout.ignore else None
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _rename_columns(layout: Layout, record: Mapping[str, Any]) -> dict[str, Any]:
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
            text = f"no column {name!r}, which is stated to hold the record's {standard}"
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


def _decode_structured(record: Mapping[str, Any]) -> Mapping[str, Any]:
    changed: dict[str, Any] = {}
    for key in sorted(_STRUCTURED.intersection(record)):
        if type(value := record[key]) is list:
            continue
        if type(value) is str and value[:1] in ("[", "{") and value.rstrip()[-1:] in ("]", "}"):
            try:
                changed[key] = value = orjson.loads(value)
            except ValueError as error:
                raise BadRecord("bad_json", f"the text in {key!r} is not JSON: {error}") from None
        if type(value) is dict and (key in refs.TURN_KEYS or {"user", "assistant"} <= value.keys()):
            lists = list(value.values())  # of roles and of texts
            if all(isinstance(each, list) for each in lists) and len({*map(len, lists)}) == 1:
                rows = [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)]
                changed[key] = [{k: v for k, v in r.items() if v is not None} for r in rows]
    return {**record, **changed} if changed else record
