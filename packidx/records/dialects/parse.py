"""Raw records of every known dialect → `Conversation`.

ShareGPT (``conversations`` of ``from``/``value``), OpenAI (``messages`` of ``role``/``content``)
and NeMo (``conversation``, ``_text_tokens``, ``mm_inputs_meta``) differ in names only. So one
parser takes any of the names: it looks for the turns under the keys of `TURN_KEYS` in that order.
A record without turns may be a question and its answer, or a medium's caption (`questions`), or,
where nothing else is said, a text alone (`documents`). Tokens (``input_ids``) win over anything
else that a record holds, then turns, then questions with answers, then captions.

A placeholder (``<image>``, ``<video>``, ``<audio>``) in any text stands for the next entry of the
record's own list (``image``/``images`` …), as does a content part without a reference. In the text
of a document, and in a record where nothing could be a medium, it stands for nothing: that is as it
is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import orjson

from packidx.errors import BadRecord
from packidx.records.conversation import SAID, Conversation, Media, Turn
from packidx.records.dialects.questions import QUESTIONS, question_turns
from packidx.records.dialects.sides import OF_PREFERENCES, refuse_preferences
from packidx.records.dialects.standard import is_document, may_hold_media, plain_document
from packidx.records.layout import SYSTEM, UNUSED
from packidx.records.media.held import media_in
from packidx.records.media.references import (
    LIST_KEYS,
    MAX_TOKENS,
    OBJECT,
    TURN_KEYS,
    cut,
    integer,
    media_entries,
    medium_of,
    named,
    part_kind,
    refuse_rounded,
    stated_facts,
    turn_key,
)

OF_TEMPLATES = {"developer": "system", "function": "tool", "ipython": "tool"}
"""Words for roles that templates may know themselves: these get the word, others the role."""
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
    **OF_TEMPLATES,
}
_CALL_ROLES = frozenset(("function_call", "tool_call"))
_CALLS = frozenset(("tool_calls", "function_call"))  # whose arguments may name any file
_SPECIAL = {*OF_TEMPLATES, *_CALL_ROLES}
_TRAIN_KEYS = frozenset(
    ("train", "training", "loss", "loss_weight", "weight", "loss_scale", "train_on_turn", "learn")
    + ("is_train", "is_trained", "compute_loss", "calculate_loss", "trainable", "train_on")
)
"""Keys of a message whose 1 or true says that it is trained on."""
_NO_FLAG, _ANY = "none", "any"
_FLAGS = (
    (True, r"is_train|trainable|compute_loss|loss_scale|loss_weight"),
    (True, r"train_on_(?!last)\w*(?:respons|completion|assistant|output|answer|turn)\w*"),
    (False, r"train_on_\w+|mask_history|(?:ignore|no|skip)_loss|only_\w*loss\w*"),
    (None, r"loss_(?:mask|turn|token|role)s?|train_details?"),
    (_ANY, r"(?:train|loss)_masks?|loss_\w+|(?:(?:turn|message|token)_)?weights|masks?"),
)
"""Columns that say what of a record is trained on, and the value that changes nothing; or those
that say it where they have flags or name a role."""
_TURN_OWN_KEYS = frozenset(("role", "from", "content", "value")) | _TRAIN_KEYS
MESSAGE_KEYS = _TURN_OWN_KEYS | {"name", "id", "tool_call_id", "tool_plan", *SAID}
"""Keys of a message that are read."""
_PLACEHOLDER, _TWICE = (re.compile(p) for p in ("<(image|video|audio)>", "<<(image|video|audio)>>"))
_SHOWN = "image|img|pic|picture|photo|video|vid|frame|vision|media|audio|sound|speech"
_NUMBERED = r"[-_ :#]?\d+"
_UNKNOWN_PLACE = re.compile(
    rf"<\|?(?:start_of_|begin_of_|end_of_)?(?P<word>{_SHOWN})"
    rf"(?:[-_ ]?(?:soft|pad|tokens?|placeholder|here|start|end|begin|content|context|[be]os)"
    rf"|{_NUMBERED})*\s*/?\|?>(?!(?s:.+)</(?P=word)\s*>)"
    r"|<\|endoftext\d+\|>|<\|?[bes]o[aiv]\|?>|<im_(?:patch|start|end)>"
    rf"|\[(?<![\w\])]\[)(?:img|image|picture|pic|video|vid|audio)(?:{_NUMBERED})?\](?![\[(:]|http)",
    re.IGNORECASE,
)
"""What other tools write where a medium stands."""
_WORD = rf"(?:{_SHOWN})s?(?:{_NUMBERED})?"
_TEMPLATED = re.compile(
    rf"(?<![\w$\\}}{{])(?:\{{\{{? *{_WORD} *\}}|%{_WORD}%|__{_WORD}__|\${_WORD}\$)", re.IGNORECASE
)
"""Placeholders that prompt templates write for a medium."""
_END = re.compile(
    r"(?:(?:video|clip)_)?(?:start|end|begin)(?:[_ ]?(?:time(?:stamp)?|s(?:ec\w*)?))?"
)
_WHOLE_VIDEO = "video", None, False
_TIME = re.compile(r"(?=.*[1-9])\d+(?::\d+){0,2}(?:[.,]\d+)?s?")

Parts = tuple[str | Media, ...]


def parse(record: Any, *, has_media: bool = False) -> Conversation:
    """A raw record as a conversation.

    Args:
        record: a decoded JSON object; image references may also be bytes or opened PIL images.
        has_media: whether other records of its source have media: then this one's may be missing,
            and a placeholder is not text.

    Raises:
        BadRecord: ``bad_record``, ``no_messages``, ``bad_turn``, ``unknown_role``, ``bad_media``,
            ``media_mismatch``, ``bad_text_tokens``, ``bad_meta``, ``bad_input_ids``,
            ``bad_labels`` or ``preference_data``.
    """
    if not isinstance(record, OBJECT):
        raise BadRecord("bad_record", f"the record is {named(record)}, not an object")
    tokens = tokens_of(record)
    if tokens is not None:
        return tokens
    if not OF_PREFERENCES.isdisjoint(record):
        refuse_preferences(record)
    lists = MediaLists(record, has_media)
    raw_turns = _raw_turns(record)
    _refuse_flags(record)
    count = _text_tokens(record)
    if is_document(raw_turns):
        written = _document(raw_turns[0], lists)
        lists.check()
        return Conversation((written,), count, is_document=True)
    turns = [_turn(turn, number, lists) for number, turn in enumerate(raw_turns)]
    if any(turn.extra for turn in turns):
        turns = _with_calls(raw_turns, turns)
    lists.place(turns)
    lists.check()
    _refuse_cut(record, turns)
    has_literal = lists.has_literal
    return Conversation(
        _with_system(record, turns), count, _tools(record.get("tools")), has_literal=has_literal
    )


def _refuse_cut(record: Mapping[str, Any], turns: Sequence[Turn]) -> None:
    """Raise a BadRecord if a record asks for a part of its one video."""
    media = [part for turn in turns for part in turn.parts if isinstance(part, Media)]
    if [(m.kind, m.frame_indices, isinstance(m.ref, list)) for m in media] != [_WHOLE_VIDEO]:
        return
    times = {name: value for name, value in record.items() if _END.fullmatch(name)}
    cuts = {name: value for name, value in times.items() if _TIME.fullmatch(str(value).strip())}
    if any(value != record.get("duration") for value in cuts.values()):
        text = f"the record asks for a part of its video, {cut(cuts)}, which is not cut out"
        cure = " ".join(f"--ignore {name}" for name in times)
        raise BadRecord("unsupported_media_option", f"{text}: {cure} takes the whole")


def _text_tokens(record: Mapping[str, Any]) -> int | None:
    """The record's own count, which tables in text hold as digits."""
    stated = record.get("_text_tokens")
    if isinstance(stated, str) and re.fullmatch("-?[0-9]{1,20}", stated):
        stated = int(stated)
    return integer(stated, 0, MAX_TOKENS, "_text_tokens", "bad_text_tokens")


def _raw_turns(record: Mapping[str, Any]) -> list[Any]:
    key = turn_key(record)
    if key is None:
        asked = question_turns(record)
        turns = plain_document(record) if asked is None else asked
        if turns is not None:
            return turns
        asks = any(record.get(name) for name in QUESTIONS)
        cure = (
            "name the column that holds the turns" + ", or the answer (--column response=…)" * asks
        )
        keys = ", ".join(name for name in map(str, record) if not name.startswith("__"))
        text = f"the record has none of {', '.join(TURN_KEYS)}, only {keys:.200}: {cure}"
        raise BadRecord("no_messages", text)
    turns = record[key]
    if not isinstance(turns, list | tuple):
        raise BadRecord("no_messages", f"{key!r} is {named(turns)}, not a list")
    if not turns:
        raise BadRecord("no_messages", f"{key!r} is empty")
    return list(turns)


def _document(turn: Mapping[str, Any], lists: MediaLists) -> Turn:
    """The one turn of a document, its text as it is."""
    content = turn.get("content")
    parts: list[str | Media] = []
    for part in content if isinstance(content, list | tuple) else [content]:
        if isinstance(part, str) or part_kind(part) == "text":
            text = _text_of(part, 0)
            parts += [text] if text else []
        else:
            parts += _part(part, 0, lists)
    if not parts:
        raise BadRecord("no_messages", "the document is empty")
    return Turn("assistant", tuple(parts))


def _turn(turn: Any, number: int, lists: MediaLists) -> Turn:
    if not isinstance(turn, OBJECT):
        raise BadRecord("bad_turn", f"turn {number} is {named(turn)}, not an object")
    stated = turn["role"] if "role" in turn else turn.get("from")
    role = ROLES.get(stated) if isinstance(stated, str) else None
    if role is None:
        has = "no role" if stated is None else f"the role {cut(stated)}"
        text = f"turn {number} has {has}: known are {', '.join(ROLES)}"
        raise BadRecord("unknown_role", text)
    content = turn["content"] if "content" in turn else turn.get("value")
    if len(turn) == 2 and type(content) is str and stated not in _SPECIAL:  # as nearly all are
        return Turn(role, _split(content, lists))
    extra = {key: value for key, value in turn.items() if key not in _TURN_OWN_KEYS}
    train = None if _TRAIN_KEYS.isdisjoint(turn) else _train(turn, number)
    if stated in _CALL_ROLES:
        content, extra = "", {"tool_calls": _calls(content, number), **extra}
    if content is None:
        if extra.get("function_call") and not extra.get("tool_calls"):
            extra["tool_calls"] = _calls(extra.pop("function_call"), number)
        if not extra.get("tool_calls"):
            raise BadRecord("bad_turn", f"turn {number} has no content")
        extra["content"] = None
    for key in _CALLS & extra.keys():
        refuse_rounded(extra[key], key)
    if stated in OF_TEMPLATES:
        extra["role"] = stated
    parts = _parts(content, number, lists)
    is_text = len(parts) < 2 and all(isinstance(part, str) for part in parts)
    return Turn(role, parts, extra, train, is_text and isinstance(content, list | tuple))


def _train(turn: Mapping[str, Any], number: int) -> bool | None:
    """Return whether the turn is stated to be trained on."""
    stated = {key: turn[key] for key in sorted(_TRAIN_KEYS) if turn.get(key) is not None}
    for key, value in stated.items():
        if type(value) not in (bool, int, float) or value not in (0, 1):
            raise BadRecord("bad_turn", f"{key!r} of turn {number} is {cut(value)}, not 0 or 1")
    if len({bool(value) for value in stated.values()}) > 1:
        raise BadRecord("bad_turn", f"turn {number} has {cut(stated)}: they contradict each other")
    return next((bool(value) for value in stated.values()), None)


def _refuse_flags(record: Mapping[str, Any]) -> None:
    """Raise a BadRecord if a column says that other messages are trained on than the policy's."""
    for name, value in record.items():
        wanted = _usual_flag(name)
        if wanted == _ANY and not _is_flags(value) and str(value).lower() not in ROLES:
            continue
        if wanted == _NO_FLAG or (not value and type(value) not in (bool, int, float)):
            continue
        if wanted is None or type(value) not in (bool, int, float) or value != wanted:
            text = f"the column {name!r} is {cut(value)}, which says what is trained on: write it"
            raise BadRecord(UNUSED, f"{text} into the turns as 'train', or give --ignore {name}")


def _is_flags(value: Any) -> bool:
    """Return whether a value is a flag, or flags of turns or tokens."""
    items = value if isinstance(value, list | tuple) else [value]
    return bool(items) and all(type(item) in (bool, int) and item in (0, 1) for item in items)


@lru_cache(4096)
def _usual_flag(name: str) -> bool | str | None:
    return next((value for value, names in _FLAGS if re.fullmatch(names, name)), _NO_FLAG)


def _with_calls(raw_turns: Sequence[Any], turns: Sequence[Turn]) -> list[Turn]:
    """Turns of which a call and what the assistant says before it are one message, as parallel
    calls are: the model does not end its turn before it calls."""
    merged: list[Turn] = []
    for number, (raw, turn) in enumerate(zip(raw_turns, turns, strict=True)):
        last = merged[-1] if merged else None
        stated = raw["role"] if "role" in raw else raw.get("from")
        if stated not in _CALL_ROLES or last is None or last.role != "assistant":
            merged.append(turn)
            continue
        both = {"tool_calls": [*last.extra.get("tool_calls", ()), *turn.extra["tool_calls"]]}
        differ = (last.extra.keys() & turn.extra.keys()) - {"tool_calls", "content"}
        if last.train != turn.train or any(last.extra[key] != turn.extra[key] for key in differ):
            text = f"turn {number} is a call of the turn before it, which says otherwise"
            raise BadRecord("bad_turn", f"{text} of {', '.join(sorted(differ)) or 'its loss'}")
        merged[-1] = replace(last, extra={**turn.extra, **last.extra, **both})
    return merged


def _calls(content: Any, number: int) -> list[dict[str, Any]]:
    """The calls of a ``function_call`` turn, whose content is their JSON (LLaMA-Factory's way)."""
    try:
        calls = orjson.loads(content) if isinstance(content, str) else content
    except ValueError:
        raise BadRecord("bad_turn", f"the function call of turn {number} is not JSON") from None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and call.get("name") for call in calls):
        raise BadRecord(
            "bad_turn", f"turn {number} is not a function call with a name: {cut(content)}"
        )
    return [{"type": "function", "function": call} for call in calls]


def _parts(content: Any, number: int, lists: MediaLists) -> Parts:
    if isinstance(content, str):
        return _split(content, lists)
    if isinstance(content, list | tuple):
        return tuple(piece for part in content for piece in _part(part, number, lists))
    if content is not None:
        raise BadRecord("bad_turn", f"the content of turn {number} is {named(content)}")
    return ()


def _part(part: Any, number: int, lists: MediaLists) -> Parts:
    kind = part_kind(part)
    if kind == "text":
        text = _text_of(part, number)
        return _split(text, lists) if text else (text,)
    if kind is not None:
        medium = medium_of(kind, part)
        return (lists.next(kind) if medium.ref is None else lists.own(medium),)
    raise BadRecord("bad_turn", f"turn {number} has a content part {_unknown_part(part)}")


def _text_of(part: Any, number: int) -> str:
    text = part if isinstance(part, str) else part.get("text")
    if not isinstance(text, str):
        raise BadRecord("bad_turn", f"a text part of turn {number} is {named(text)}")
    return text


def _unknown_part(part: Any) -> str:
    if not isinstance(part, OBJECT):
        return f"that is {named(part)}, not an object"
    stated = part.get("type")
    has = "without a type" if stated is None else f"of unknown type {cut(stated)}"
    return f"{has}: known are text, {', '.join(LIST_KEYS)}"


def _split(text: str, lists: MediaLists) -> Parts:
    if "<" not in text:
        return (text,) if text else ()
    if "<img>" in text and (kind := media_in(text)) is not None:
        raise unread("a text, in <img>…</img>,", kind)
    if "<image>" not in text and "<video>" not in text and "<audio>" not in text:
        return (text,)
    if not lists.may_be:
        lists.has_literal = True
        return (text,)
    if "<<" in text and (mark := _TWICE.search(text)) is not None:
        raise BadRecord("media_mismatch", f"a text has {mark[0]!r}: write <{mark[1]}> in its place")
    pieces = enumerate(_PLACEHOLDER.split(text))
    return tuple(lists.next(piece) if number % 2 else piece for number, piece in pieces if piece)


def _tools(tools: Any) -> list[Any] | None:
    if isinstance(tools, str) and tools.strip():  # LLaMA-Factory keeps them as JSON text
        try:
            tools = orjson.loads(tools)
        except ValueError:
            raise BadRecord("bad_record", "'tools' is text that is not JSON") from None
    if tools is None or isinstance(tools, str):
        return None
    if not isinstance(tools, list):
        raise BadRecord("bad_record", f"'tools' is {named(tools)}, not a list")
    refuse_rounded(tools, "tools")
    return tools


def _with_system(record: Mapping[str, Any], turns: list[Turn]) -> tuple[Turn, ...]:
    name = SYSTEM[0] if record.get(SYSTEM[0]) not in (None, "") else SYSTEM[1]
    system = record.get(name)
    if system is None or system == "":
        return tuple(turns)
    if not isinstance(system, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(system)}, not text")
    if turns[0].role == "system":
        raise BadRecord("bad_turn", f"the record has both {name!r} and a leading system turn")
    return (Turn("system", (system,)), *turns)


IGNORED = -100
"""The label of a position that is not trained on."""


def tokens_of(record: Mapping[str, Any]) -> Conversation | None:
    """The record's tokens as a conversation without turns, or None where it has none.

    Lists, tuples, NumPy arrays and Arrow lists of integers are taken.

    Raises:
        BadRecord: ``bad_input_ids`` or ``bad_labels``.
    """
    ids = record.get("input_ids")
    if ids is None:
        return None
    tokens = _checked(ids, "input_ids", 0)
    stated = record.get("labels")
    labels = None if stated is None else _checked(stated, "labels", IGNORED)
    if labels is not None and len(labels) != len(tokens):
        text = f"{len(labels)} labels for {len(tokens)} input_ids"
        raise BadRecord("bad_labels", text)
    count = _text_tokens(record)
    return Conversation((), count, input_ids=tokens, labels=labels)


def _checked(value: Any, name: str, low: int) -> list[int]:
    reason = f"bad_{name}"
    if hasattr(value, "as_py"):
        value = value.as_py()
    elif hasattr(value, "to_pylist"):
        value = value.to_pylist()
    if not isinstance(value, list | tuple | np.ndarray):
        raise BadRecord(reason, f"{name!r} is {named(value)}, not a list of integers")
    if len(value) == 0:
        raise BadRecord(reason, f"{name!r} is empty")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.empty((), object)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadRecord(reason, f"{name!r} is {cut(value)}, not a list of integers")
    # A boolean among integers is one to NumPy, and no token.
    if type(value) is not np.ndarray and any(type(item) is bool for item in value):
        raise BadRecord(reason, f"{name!r} holds a boolean")
    wrong = (array < 0) & (array != low) if low < 0 else array < 0
    wrong |= array > MAX_TOKENS
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise BadRecord(reason, f"{name!r} holds {array[at]} at {at}, which is not a token")
    tokens: list[int] = array.tolist()
    return tokens


# -- the media of a record -------------------------------------------------------------------------


class MediaLists:
    """The record's own media, handed out to the placeholders in order of appearance, and what it
    states of all its media (``mm_inputs_meta``).

    Raises:
        BadRecord: ``bad_media`` or ``bad_meta``.
    """

    def __init__(self, record: Mapping[str, Any], has_media: bool) -> None:
        meta = record.get("mm_inputs_meta")
        self._stated = None if meta is None else _stated_media(meta)
        self._listed = {
            kind: media_entries(record, kind)[1]
            for kind, keys in LIST_KEYS.items()
            if not record.keys().isdisjoint(keys)
        }
        self._record, self._has_media = record, has_media
        self._used: dict[str, int] = {}  # by placeholders
        self._seen: dict[str, int] = {}  # of all
        self.has_literal = False
        """Whether a text held a placeholder where nothing could be a medium."""

    @cached_property
    def may_be(self) -> bool:
        """Whether a placeholder could stand for something."""
        return self._stated is not None or self._has_media or may_hold_media(self._record)

    def next(self, kind: str) -> Media:
        """The medium that the next placeholder of a kind stands for."""
        number = self._used.get(kind, 0)
        self._used[kind] = number + 1
        listed = self._listed.get(kind, ())
        if number >= len(listed):
            return self.own(Media(kind))  # refused by `check`
        medium = medium_of(kind, listed[number])
        if medium.ref is None:
            raise BadRecord("bad_media", f"an entry of the record's {kind}s names nothing")
        return self.own(medium)

    def own(self, medium: Media) -> Media:
        """The next medium, whoever names it, with what the record states of it where it does not
        know better itself; counted tokens are always taken."""
        if self._stated is None:
            return medium
        kind = medium.kind
        number = self._seen.get(kind, 0)
        self._seen[kind] = number + 1
        entries = self._stated.get(kind)
        if entries is None or number >= len(entries):
            return medium
        facts = _entry(entries[number], kind)
        taken = {
            name: fact
            for name, fact in facts.items()
            if fact is not None and (name == "tokens" or getattr(medium, name) is None)
        }
        return replace(medium, **taken)

    def place(self, turns: list[Turn]) -> None:
        """Put the media of each kind of which no turn has one before the first user's words; refuse
        texts with another tool's placeholder."""
        at = next((n for n, turn in enumerate(turns) if turn.role == "user"), None)
        if at is None:
            return
        listed = [kind for kind, held in self._listed.items() if held and kind not in self._used]
        shown = {part.kind for turn in turns for part in turn.parts if isinstance(part, Media)}
        front = [self.next(k) for k in listed if k not in shown for _ in self._listed[k]]
        places = (place for turn in turns for place in _unknown_places(turn, not front, shown))
        place = next(places, None)
        is_medium = place is not None and (
            bool(front or shown or (self._has_media and place.startswith("<")))
            or may_hold_media(self._record)
        )
        if is_medium:
            text = f"a text has {place!r}: only <image>, <video> and <audio> stand for media"
            raise BadRecord("media_mismatch", f"{text}; a --transform writes them")
        if front:
            parts = (*front, *turns[at].parts)
            turns[at] = replace(turns[at], parts=parts, text_as_list=False)

    def check(self) -> None:
        """Refuse a record with more or fewer placeholders than media, or that states more or fewer
        than there were."""
        for kind in {**self._listed, **self._used}:
            used, listed = self._used.get(kind, 0), len(self._listed.get(kind, ()))
            if used != listed:
                text = f"{used} placeholder(s) for {kind}s but {listed} {kind}(s) in the record"
                others = [other for other, held in self._listed.items() if held]
                if not listed and others:
                    text += f"; it has {others[0]}s, for which <{others[0]}> stands"
                elif not listed:
                    text += f"; where <{kind}> is text, --ignore {kind}s says so"
                raise BadRecord("media_mismatch", text)
        for kind, entries in (self._stated or {}).items():
            if len(entries) != (seen := self._seen.get(kind, 0)):
                has = f"{len(entries)} entries but the record has {seen} {kind}(s)"
                raise BadRecord(_REASON, f"'{kind}s_meta' has {has}")


def _unknown_places(turn: Turn, is_placed: bool, shown: Collection[str]) -> Iterator[str]:
    """The placeholders of other tools in what a turn says.

    Args:
        is_placed: whether all the record's media have a place. Then only those count that begin a
            line of the user's, and numbers (``<image 1>``) refer to media that are `shown`.
    """
    for text in turn.texts if turn.role == "user" or not is_placed else ():
        for mark in _UNKNOWN_PLACE.finditer(text) if "<" in text or "[" in text else ():
            begins = text[: mark.start()].rstrip(" \t")[-1:] in ("", "\n")
            refers = shown and "|" not in mark[0] and re.search(r"\d", mark[0])
            if not is_placed or (begins and not refers):
                yield mark[0]
        if not is_placed and turn.role == "user":
            yield from (mark[0] for mark in _TEMPLATED.finditer(text))


def unread(place: str, kind: str) -> BadRecord:
    """Why a record is refused with a medium in a place where nobody reads one."""
    text = f"{place} holds a medium ({kind}) that nothing reads: name it in the record's own list"
    return BadRecord(UNUSED, f"{text} of {kind}s, with <{kind}> in the text, or use a --transform")


_REASON = "bad_meta"
_META = {  # a list's entries in order, as far as it has them
    "image": ("height", "width", "n_tokens"),
    "video": ("num_frames", "height", "width", "fps", "duration", "n_tokens"),
    "audio": ("num_samples", "sampling_rate", "n_tokens"),
}
_META_FORMS = {
    "image": "[height, width]",
    "video": "[frames, height, width, fps, seconds]",
    "audio": "[samples, samples per second]",
}


def _stated_media(meta: Any) -> dict[str, Sequence[Any]]:
    """Return what the value of ``mm_inputs_meta`` states, by kind of media."""
    if not isinstance(meta, OBJECT):
        raise BadRecord(_REASON, f"'mm_inputs_meta' is {named(meta)}, not an object")
    lists = {kind: meta.get(f"{kind}s_meta") for kind in LIST_KEYS}
    for kind, entries in lists.items():
        if entries is not None and not isinstance(entries, list | tuple):
            raise BadRecord(_REASON, f"'{kind}s_meta' is {named(entries)}, not a list")
    return {kind: entries for kind, entries in lists.items() if entries is not None}


def _entry(entry: Any, kind: str) -> dict[str, Any]:
    is_pair = isinstance(entry, list | tuple) and len(entry) == 2  # a video's may be its size alone
    names = _META["image" if is_pair and kind == "video" else kind]
    if isinstance(entry, list | tuple) and len(names) - len(entry) in (0, 1):
        entry = dict(zip(names, entry, strict=False))
    if entry is None:
        return {}
    if not isinstance(entry, OBJECT):
        text = f"an entry of '{kind}s_meta' is {cut(entry)}, not {_META_FORMS[kind]}"
        raise BadRecord(_REASON, text)
    return _video(entry) if kind == "video" else stated_facts(entry, kind, _REASON)


def _video(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A video's facts; 0 means unknown, and frames then follow from rate and duration."""
    stated, seconds = {name: _whole(value) for name, value in entry.items()}, entry.get("duration")
    for name in ("num_frames", "nframes", "total_frames", "fps"):
        if stated.get(name) == 0:
            stated[name] = None
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < math.inf):
        raise BadRecord(_REASON, f"a video's duration is {cut(seconds)}, not a number of seconds")
    facts = stated_facts(stated, "video", _REASON)
    if facts.get("num_frames") is None and facts["fps"] and seconds:
        facts["num_frames"] = max(1, int(seconds * facts["fps"]))
    return facts


def _whole(value: Any) -> Any:
    """A whole number that was stored as a float, as an integer."""
    return int(value) if type(value) is float and value.is_integer() else value
