"""Records that no layout fits: what they hold, and the options under which one may.

Columns are taken whose names are a word for what is lacking and whose values are of its kind; only
options under which the records are conversations are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from msgspec.structs import replace

from packidx.errors import BadRecord, OptionError
from packidx.format.manifest import Layout
from packidx.format.terms import PAIR_SIDES
from packidx.records.conversation import Conversation
from packidx.records.dialects.parse import ROLES, parse
from packidx.records.dialects.standard import standard
from packidx.records.ledger import Ledger, word_of
from packidx.records.media.held import SPEAKERS, media_in, turns_in
from packidx.records.media.references import LIST_KEYS, TURN_KEYS, named

Record = Mapping[str, Any]

_WORDS = {  # of columns of text, the likeliest first
    "prompt": ("question", "prompt", "query", "instruction", "problem", "user", "human", "q"),
    "response": ("answer", "response", "output", "completion", "reply", "solution", "a"),
    "caption": ("caption", "description", "alt"),
    "text": ("content", "body", "article", "document", "passage"),
}
_FORMS = (
    ("question and answer", ("prompt", "response")),
    ("captions", ("caption",)),
    ("documents", ("text",)),
)
_ALIKE = 0.8  # of difflib: one letter too many, lacking or changed in a word
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
        """Return the options of the command that `given` does not have."""
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

    def wrong(self, given: Layout) -> list[str]:
        """Return the options that `given` has and the layout has not."""
        lacking = given.columns.items() - self.layout.columns.items()
        return [word for key, name in sorted(lacking) for word in ("--column", f"{key}={name}")]


def suggested(records: Sequence[Record], given: Layout, kind: str) -> Suggestion | None:
    """A layout under which most of `records` are conversations; None where none is found.

    Args:
        records: as they stand in their shards.
        given: the layout under which they are not.
        kind: of their shards' container.
    """
    names = [n for n in dict.fromkeys(n for r in records for n in r) if not _HIDDEN.fullmatch(n)]
    values = {name: [r[name] for r in records if r.get(name) is not None] for name in names}
    lacking = absent(given, {*names})
    kept = {key: name for key, name in given.columns.items() if key not in lacking}
    media = _media_columns(values, replace(given, columns=kept))
    as_it_is = [("read as it is", dict[str, Any]())] if lacking else []
    for nearest, changes in [*as_it_is, *_guesses(values, given)]:
        for more in (media, {}) if media else ({},):
            columns = {**kept, **changes.get("columns", {}), **more}
            try:
                layout = replace(given, **{**changes, "columns": columns})
            except OptionError:
                continue
            read = [] if layout == given else [_read(record, layout, kind) for record in records]
            good = [seen for seen in read if seen is not None and (seen.media or not more)]
            if 2 * len(good) > len(records):
                return Suggestion(nearest, layout, _shown(good[0]))
    return None


def absent(layout: Layout, names: Set[str]) -> dict[str, str]:
    """The columns that `layout` states and that are none of `names`."""
    return {
        key: name
        for key, name in layout.columns.items()
        if names.isdisjoint((name, *name.split(",")))
    }


def _guesses(
    values: Mapping[str, Sequence[Any]], given: Layout
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layouts in words, and what they state; the likeliest first."""
    yield "preference pairs", {"pair": "chosen"}
    for name, held in values.items():
        turns = [turn for value in held for turn in turns_in(value) or () if isinstance(turn, dict)]
        if not turns:
            continue
        columns = {} if name in TURN_KEYS else {"messages": name}
        yield "turns in a column of another name", {"columns": columns}
        for role in (key for key in turns[0] if word_of(key) in SPEAKERS):
            others = [key for key in turns[0] if key != role]
            others.sort(key=lambda key: -sum(len(str(turn.get(key))) for turn in turns))
            tags = {"role_tag": role, "content_tag": others[0]} if others else {}
            yield "turns with names of their own", {"columns": columns, "tags": tags}
            if of_roles := _role_tags(turns, role):
                own = {**given.tags, **of_roles}
                yield "turns with roles of their own", {"columns": columns, "tags": own}
                yield "turns with roles of their own", {"columns": columns, "tags": {**tags, **own}}
    texts = [name for name, held in values.items() if _are_texts(held)]
    for nearest, wanted in _FORMS:
        columns = {}
        for standard_name in wanted:
            likely = _WORDS[standard_name]
            named_so = [n for word in likely for n in texts if word_of(n) == word]
            named_so += [n for word in likely for n in get_close_matches(word, texts, 1, _ALIKE)]
            columns[standard_name] = next(iter(named_so), "")
        if all(columns.values()):
            yield nearest, {"columns": columns}


def _role_tags(turns: Sequence[Mapping[str, Any]], key: str) -> dict[str, str]:
    """Tags for roles of unknown names: who speaks first is the user."""
    words = dict.fromkeys(str(turn.get(key)) for turn in turns)
    known = {ROLES[word] for word in words if word in ROLES}
    unknown = [word for word in words if word not in ROLES]
    free = [role for role in ("user", "assistant") if role not in known]
    return {f"{role}_tag": word for role, word in zip(free, unknown, strict=False)}


def _are_texts(held: Sequence[Any]) -> bool:
    """Return whether values are texts that say something, and no media, turns, numbers or ids."""
    if not held or not all(isinstance(value, str) and not turns_in(value) for value in held):
        return False
    return not all(map(str.isalnum, held)) and not all(map(media_in, held))


def _media_columns(values: Mapping[str, Sequence[Any]], given: Layout) -> dict[str, str]:
    """Columns of media that are called otherwise."""
    columns: dict[str, str] = {}
    known = {key for keys in LIST_KEYS.values() for key in keys} | set(given.columns.values())
    for name, held in values.items():
        kinds = {media_in(value) for value in held}
        if name not in known and len(kinds) == 1 and (kind := kinds.pop()) is not None:
            columns.setdefault(LIST_KEYS[kind][0], name)
    return columns


def _read(record: Record, layout: Layout, kind: str) -> Conversation | None:
    """Return what training sees of a record; None where it is not trained on, or not all of it is
    seen."""
    seen = []
    for side in PAIR_SIDES if layout.takes_both else (None,):
        one = layout.of_side(side)
        try:
            seen.append(parse(standard(dict(record), one), has_media=True))
            Ledger(one, kind, {}).check(record)
        except (BadRecord, RecursionError):
            return None
        if not any(turn.role == "assistant" for turn in seen[-1].turns):
            return None
    return seen[0]


def _shown(conversation: Conversation, room: int = 200) -> str:
    """A conversation in one line of at most `room` characters."""
    said = []
    for turn in conversation.turns:
        parts = (part if isinstance(part, str) else f"<{part.kind}>" for part in turn.parts)
        role = "document" if conversation.is_document else turn.role
        said.append(f"{role}: {' '.join(''.join(parts).split())}")
    text = " | ".join(said)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def described(record: Record, room: int = 300) -> str:
    """The keys of a record and what they hold, in one line of at most `room` characters."""
    names = [name for name in record if not _HIDDEN.fullmatch(str(name))]
    text = ", ".join(f"{' '.join(str(name).split())}: {named(record[name])}" for name in names)
    return text if len(text) <= room else f"{text[: room - 1]}…"
