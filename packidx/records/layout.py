"""How a data set names its columns, roles and parts, and its records in the standard names.

A `Layout` comes from a mix (`mixes`) or from the command line. `Layout.apply` is the one place that
knows a data set's own words; behind it every record has the names that `dialects.parse` knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson

from packidx.errors import BadRecord, OptionError
from packidx.format.terms import PAIR_SIDES

TURN_KEYS = ("messages", "conversations", "conversation")
COLUMNS = (
    *("messages", "images", "videos", "audios", "system", "tools", "id"),
    *("input_ids", "labels", "text_tokens", "mm_inputs_meta"),
    *("prompt", "query", "response", "history", "caption", "text"),
    *("chosen", "rejected"),
)
"""Standard columns that another may stand for."""
TAGS = {
    "role_tag": None,  # which names a key, as does the next
    "content_tag": None,
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "function_call",
}
"""What LLaMA-Factory and NeMo call the words of a turn → the role such a word means."""

_KEYS = {"text_tokens": "_text_tokens"}  # a column's key in the record, where it has another name
_SAID = ("caption", "text", "TEXT", "txt")
_RIVALS = {
    "messages": (*TURN_KEYS, "texts", "text_list"),
    "images": ("images", "image"),
    "videos": ("videos", "video"),
    "audios": ("audios", "audio"),
    "id": ("id", "key", "__key__", "uid"),
    "prompt": ("prompt", "instruction", "question"),
    "query": ("query", "input"),
    "response": ("response", "completion", "output", "answer"),
    "caption": _SAID,
    "text": _SAID,
}  # keys of the same meaning as a stated column, so that no other is taken for it
_KNOWN = frozenset((*COLUMNS, *(name for names in _RIVALS.values() for name in names)))
# names with a meaning, which they lose where they are stated to be something else
_REQUIRED = ("messages", "input_ids", "labels", "prompt", "response", "caption", "text")
_STRUCTURED = frozenset(
    (*TURN_KEYS, "input_ids", "labels", "mm_inputs_meta", "history")
    + ("images", "image", "videos", "video", "audios", "audio")
)
_PAIR_KEYS = ("prompt", "chosen", "rejected", "rejected_messages")  # that may hold turns
_ROLE_KEYS = ("role", "from")
_OPTIONS = {
    "columns": "--column",
    "tags": "--tag",
    "delimiter": "--delimiter",
    "pair": "--pair",
    "ignore": "--ignore",
}
BOTH = "both"
PAIRS = (*PAIR_SIDES, BOTH)
"""What `Layout.pair` may be: which answer of preference pairs is taken."""


@dataclass(frozen=True)
class Layout:
    """What is particular to one data set. Part of what decides its lengths."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Standard column (`COLUMNS`) → the data set's own; several, in order, with commas between."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tag (`TAGS`) → the data set's own word."""
    media_root: str | None = None
    """Folder of its media, as given; None leaves it to the options."""
    sample_ratio: float = 1.0
    """How much of it the mix wants: its planned weight. Lengths do not depend on it."""
    delimiter: str | None = None
    """Between cells, for tables in text; None is the kind's own."""
    pair: str | None = None
    """Which side of preference pairs is taken (`PAIRS`); None takes no pairs."""
    ignore: tuple[str, ...] = ()
    """Columns that are as if they were not there; of files in a tar, what follows the key."""

    def __post_init__(self) -> None:
        _check_names("column", self.columns, COLUMNS)
        _check_names("tag", self.tags, tuple(TAGS))
        ratio = self.sample_ratio
        if type(ratio) not in (int, float) or not math.isfinite(ratio) or ratio < 0:
            raise OptionError(f"sample_ratio is {ratio!r}: give a number from 0 on")
        for name in ("media_root", "delimiter"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name} is {value!r}: give text, or leave it out")
        if not isinstance(self.ignore, list | tuple) or not all(map(_is_name, self.ignore)):
            raise OptionError(f"ignore is {self.ignore!r}: give a list of columns")
        object.__setattr__(self, "ignore", tuple(sorted(set(self.ignore))))
        if self.pair not in (None, *PAIRS):
            raise OptionError(f"pair is {self.pair!r}: give one of {', '.join(PAIRS)}")

    @property
    def takes_both(self) -> bool:
        """Whether each record is a pair of samples."""
        return self.pair == BOTH

    @property
    def stated_columns(self) -> set[str]:
        """All columns that are stated to be something."""
        return {name for own in self.columns.values() for name in (own, *own.split(","))}

    def of_side(self, side: str | None) -> Layout:
        """The layout of the records of one side, where both are taken."""
        return replace(self, pair=side) if self.takes_both and side is not None else self

    def to_json(self) -> dict[str, Any]:
        """The layout for a manifest: only what differs from the default."""
        stated = {**vars(self), "columns": dict(sorted(self.columns.items()))}
        stated["tags"] = dict(sorted(self.tags.items()))
        stated["ignore"] = list(self.ignore)
        default = {**vars(DEFAULT), "ignore": []}
        return {name: value for name, value in stated.items() if value != default[name]}

    @classmethod
    def from_json(cls, value: Any) -> Layout:
        """The layout that `to_json` wrote; None is the default one.

        Raises:
            OptionError: it is of no known form; it may be a newer version's.
        """
        if value is None:
            return DEFAULT
        known = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or not set(value) <= set(known):
            raise OptionError(f"a layout has members of {', '.join(known)}, not {value!r:.200}")
        return cls(**value)

    def completed(self, options: Layout, where: str) -> Layout:
        """This layout of a mix's data set with what the options say of all data sets.

        Args:
            options: of the command line; its media root and ratio are no part of this.

        Raises:
            OptionError: both say something of columns, of tags, of the delimiter or of pairs.
        """
        stated = {}
        for name, option in _OPTIONS.items():
            given = getattr(options, name)
            if not given:
                continue
            if getattr(self, name):
                raise OptionError(
                    f"{where} states {name} of its own, and {option} states them too: leave one out"
                )
            stated[name] = given
        return replace(self, **stated) if stated else self

    def apply(self, record: dict[str, Any], *, cells: bool = False) -> dict[str, Any]:
        """`record` in the standard names; itself where nothing has to change.

        JSON in text, as tables hold lists of turns, becomes what it says; so does an object of
        equally long lists, as `datasets` once stored lists of turns.

        Args:
            record: as it stands in its shard; it is not changed.
            cells: all its values are text, from a table.

        Raises:
            BadRecord: ``no_messages``, ``bad_record`` or ``bad_json``.
        """
        if self.ignore:
            record = {name: value for name, value in record.items() if name not in self.ignore}
        if self.columns:
            record = self._renamed(record)
        record = _structured(record)
        if self.pair is not None:
            record = self._with_sides(record)
        if cells:
            record = _numbers(record)
        return self._retagged(record) if self.tags else record

    def _renamed(self, record: dict[str, Any]) -> dict[str, Any]:
        """`record` with the stated names besides its own; what would be taken for a stated column,
        and what is stated to be another one, is left out."""
        hidden = {name for standard in self.columns for name in _RIVALS.get(standard, (standard,))}
        hidden.update(_KEYS.get(standard, standard) for standard in self.columns)
        hidden |= self.stated_columns & _KNOWN
        renamed = {k: v for k, v in record.items() if k not in hidden}
        for standard, name in self.columns.items():
            if (value := _stated(record, name)) is not None:
                renamed[_KEYS.get(standard, standard)] = value
                if standard == "query":
                    renamed["input"] = value  # what stands beside an instruction or a question
            elif standard in _REQUIRED:
                text = f"the record has no column {name!r}, which is stated to hold its {standard}"
                raise BadRecord("no_messages", text)
        return renamed

    def _retagged(self, record: dict[str, Any]) -> dict[str, Any]:
        key = next((key for key in TURN_KEYS if record.get(key) is not None), None)
        words = [(tag, word) for tag, own in self.tags.items() for word in (own, *own.split(","))]
        roles = {word: TAGS[tag] for tag, word in words if TAGS[tag] is not None}
        changed: dict[str, Any] = {}
        for name in (key, *(_PAIR_KEYS if self.pair is not None else ())):
            turns = None if name is None else record.get(name)
            if isinstance(turns, list | tuple):
                changed[str(name)] = [self._turn(turn, roles) for turn in turns]
            elif isinstance(turns, dict) and name in _PAIR_KEYS:
                changed[str(name)] = self._turn(turns, roles)
        return {**record, **changed} if changed else record

    def _with_sides(self, record: dict[str, Any]) -> dict[str, Any]:
        """`record` with turns for JSON text of turns, where a pair may have either."""
        role_keys = {*_ROLE_KEYS, self.tags.get("role_tag", "role")}
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

    def _turn(self, turn: Any, roles: Mapping[str, str | None]) -> Any:
        if not isinstance(turn, dict):
            return turn
        named = self._key_of(turn, "role_tag", ("role", "from"))
        content = self._key_of(turn, "content_tag", ("content", "value"))
        turn = dict(turn)
        role = turn.pop(named, None)
        said = turn.pop(content, None)
        for key in ("role", "from", "content", "value"):
            turn.pop(key, None)
        stated = roles.get(role, role) if isinstance(role, str) else role
        return {"role": stated, "content": said, **turn}

    def _key_of(self, turn: dict[str, Any], tag: str, usual: tuple[str, ...]) -> str:
        if tag in self.tags:
            return self.tags[tag]
        return next((key for key in usual if key in turn), usual[0])


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _check_names(kind: str, given: Any, known: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise OptionError(f"{kind}s are {given!r:.100}: give an object of names")
    for name, own in given.items():
        if name not in known:
            raise OptionError(f"there is no {kind} {name!r} to state; known: {', '.join(known)}")
        if not isinstance(own, str) or not own:
            raise OptionError(f"the {kind} {name!r} is {own!r}: give the name that the data uses")
    words = list(given.values()) if kind == "tag" else []  # a column may be two things
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise OptionError(f"{kind} {twice[0]!r} is stated to be two things: give each its own")


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


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """Cells that stand for numbers; any other text stays for `dialects.parse` to refuse."""
    stated = record.get("_text_tokens")
    if isinstance(stated, str) and stated.isascii() and stated.removeprefix("-").isdigit():
        return {**record, "_text_tokens": int(stated)}
    return record


DEFAULT = Layout()
"""The layout of a data set that uses standard names."""
