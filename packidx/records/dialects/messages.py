"""Messages of a chat: ShareGPT, OpenAI and NeMo.

ShareGPT (``conversations`` of ``from``/``value``), OpenAI (``messages`` of ``role``/``content``)
and NeMo (``conversation``) differ in names only, so one reader takes any of the names. A call and
what the assistant says before it are one message, as parallel calls are: the model does not end its
turn before it calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import TAGS
from packidx.records.conversation import SAID, Conversation, Media, Turn
from packidx.records.dialects.raw_record import Parts, RawRecord
from packidx.records.layout import SYSTEM, UNUSED
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    PART_KEYS,
    content_of,
    cut,
    named,
    part_kind,
    refuse_rounded,
    role_of,
    text_of,
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
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value")
_OWN_KEYS = frozenset((*_ROLE_KEYS, *_CONTENT_KEYS)) | _TRAIN_KEYS
MESSAGE_KEYS = _OWN_KEYS | {"name", "id", "tool_call_id", "tool_plan", *SAID}
"""Keys of a message that are read."""
_NEVER_LEFT_OUT = frozenset((*_ROLE_KEYS, *_CONTENT_KEYS, "name", "id", "tool_call_id"))
"""Keys of messages that are not left out where a column of that name is ignored."""
_END = re.compile(
    r"(?:(?:video|clip)_)?(?:start|end|begin)(?:[_ ]?(?:time(?:stamp)?|s(?:ec\w*)?))?"
)
_WHOLE_VIDEO = "video", None, False
_TIME = re.compile(r"(?=.*[1-9])\d+(?::\d+){0,2}(?:[.,]\d+)?s?")


CHAT_COLUMNS = frozenset(("tools", *SYSTEM))
"""Columns that every dialect of chats consumes besides its own."""


class Messages:
    """Chats whose messages stand under one key."""

    def __init__(self, key: str) -> None:
        self.name, self._key = key, key
        self.columns = CHAT_COLUMNS | {key}

    def read(self, raw: RawRecord) -> Conversation | None:
        """See `Dialect`."""
        messages = raw.columns.get(self._key)
        return None if messages is None else read_chat(raw, messages, self._key)


def read_chat(raw: RawRecord, messages: Any, name: str) -> Conversation:
    """Return the conversation of a list of messages, or the document of a single one.

    Args:
        name: of the column that holds them, for errors.

    Raises:
        BadRecord: ``no_messages``, ``bad_turn``, ``unknown_role``, ``bad_media`` or
            ``media_mismatch``.
    """
    if not isinstance(messages, list | tuple):
        raise BadRecord("no_messages", f"{name!r} is {named(messages)}, not a list")
    if not messages:
        raise BadRecord("no_messages", f"{name!r} is empty")
    if len(messages) == 1 and role_of(messages[0]) == DOCUMENT:
        content = messages[0].get("content")
        return document(raw, content if isinstance(content, list | tuple) else [content])
    return chat(raw, read_turns(raw, messages))


def chat(raw: RawRecord, turns: list[Turn]) -> Conversation:
    """Return a conversation of turns, with the record's system prompt, tools and media.

    Raises:
        BadRecord: media and placeholders do not match, or a column asks for another conversation.
    """
    refuse_flags(raw.columns)
    raw.place(turns)
    raw.check()
    _refuse_cut(raw.columns, turns)
    count, tools = raw.text_tokens, _tools(raw.columns.get("tools"))
    return Conversation(_with_system(raw, turns), count, tools, has_literal=raw.has_literal)


def pair_turns(raw: RawRecord, pairs: Sequence[tuple[Any, Any]]) -> list[Turn]:
    """Return the turns of (question, answer) pairs."""
    if not pairs:
        raise BadRecord("no_messages", "the record has no question with its answer")
    return [
        Turn(role, raw.split(text_of(said, f"{role} of entry {number}")))
        for number, pair in enumerate(pairs)
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]


DOCUMENT = "document"
"""The role of a document's turn: it has no chat template and no question."""


def document(raw: RawRecord, content: Sequence[Any]) -> Conversation:
    """Return a document of texts and media, which are trained on as a whole; texts stay as they
    are.

    Raises:
        BadRecord: ``no_messages``, it is empty; ``bad_turn``, ``bad_media`` or ``media_mismatch``.
    """
    refuse_flags(raw.columns)
    parts: list[str | Media] = []
    for part in content:
        if isinstance(part, Media):
            parts.append(part)
        elif isinstance(part, str) or part_kind(part) == "text":
            text = _text_of(part, 0)
            parts += [text] if text else []
        else:
            parts += _part(raw, part, 0)
    if not parts:
        raise BadRecord("no_messages", "the document is empty")
    raw.check()
    return Conversation((Turn("assistant", tuple(parts)),), raw.text_tokens, is_document=True)


def standard_message(message: Any, layout: Layout) -> Any:
    """`message` with the standard keys and roles; itself if the layout has no other ones."""
    left_out = frozenset(layout.ignore) - _NEVER_LEFT_OUT
    if not isinstance(message, dict) or not (layout.tags or left_out & message.keys()):
        return message
    words = [(tag, word) for tag, own in layout.tags.items() for word in (own, *own.split(","))]
    roles = {word: TAGS[tag] for tag, word in words if TAGS[tag] is not None}

    def taken(tag: str, usual: tuple[str, ...]) -> Any:
        own = layout.tags.get(tag)
        return message.get(
            next((key for key in usual if key in message), "") if own is None else own
        )

    role, said = taken("role_tag", _ROLE_KEYS), taken("content_tag", _CONTENT_KEYS)
    own = {*_ROLE_KEYS, *_CONTENT_KEYS, *left_out}
    own |= {layout.tags[tag] for tag in ("role_tag", "content_tag") if tag in layout.tags}
    rest = {key: value for key, value in message.items() if key not in own}
    return {
        "role": roles.get(role, role) if isinstance(role, str) else role,
        "content": said,
        **rest,
    }


def read_turns(raw: RawRecord, messages: Sequence[Any]) -> list[Turn]:
    """Return the turns of messages, calls joined with what the assistant says before them."""
    layout = raw.layout
    is_own = bool(layout.tags or layout.ignore)
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        message = standard_message(message, layout) if is_own else message
        turn, is_call = _turn(raw, message, number)
        if is_call and turns and turns[-1].role == "assistant":
            turns[-1] = _joined(turns[-1], turn, number)
        else:
            turns.append(turn)
    return turns


def _turn(raw: RawRecord, message: Any, number: int) -> tuple[Turn, bool]:
    """Return a message as a turn, and whether its role is that of a call."""
    if not isinstance(message, OBJECT):
        raise BadRecord("bad_turn", f"turn {number} is {named(message)}, not an object")
    stated = message["role"] if "role" in message else message.get("from")
    role = ROLES.get(stated) if isinstance(stated, str) else None
    if role is None:
        has = "no role" if stated is None else f"the role {cut(stated)}"
        text = f"turn {number} has {has}: known are {', '.join(ROLES)}"
        raise BadRecord("unknown_role", text)
    content = content_of(message)
    if len(message) == 2 and type(content) is str and stated not in _SPECIAL:  # as nearly all are
        return Turn(role, raw.split(content)), False
    raw.note_unknown(message, MESSAGE_KEYS)
    extra = {key: value for key, value in message.items() if key not in _OWN_KEYS}
    train = None if _TRAIN_KEYS.isdisjoint(message) else _train(message, number)
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
    parts = _parts(raw, content, number)
    is_text = len(parts) < 2 and all(isinstance(part, str) for part in parts)
    as_list = is_text and isinstance(content, list | tuple)
    return Turn(role, parts, extra, train, as_list), stated in _CALL_ROLES


def _train(message: Mapping[str, Any], number: int) -> bool | None:
    """Return True or False if the message says so whether it is trained on."""
    stated = {key: message[key] for key in sorted(_TRAIN_KEYS) if message.get(key) is not None}
    for key, value in stated.items():
        if type(value) not in (bool, int, float) or value not in (0, 1):
            raise BadRecord("bad_turn", f"{key!r} of turn {number} is {cut(value)}, not 0 or 1")
    values = {bool(value) for value in stated.values()}
    if len(values) > 1:
        raise BadRecord("bad_turn", f"turn {number} has {cut(stated)}: they contradict each other")
    return values.pop() if values else None


def _joined(said: Turn, call: Turn, number: int) -> Turn:
    """Return what the assistant says and the call that follows as one turn."""
    both = {"tool_calls": [*said.extra.get("tool_calls", ()), *call.extra["tool_calls"]]}
    differ = (said.extra.keys() & call.extra.keys()) - {"tool_calls", "content"}
    if said.train != call.train or any(said.extra[key] != call.extra[key] for key in differ):
        text = f"turn {number} is a call of the turn before it, and they differ in"
        raise BadRecord("bad_turn", f"{text} {', '.join(sorted(differ)) or 'their loss'}")
    return replace(said, extra={**call.extra, **said.extra, **both})


def _calls(content: Any, number: int) -> list[dict[str, Any]]:
    """Return the calls of a ``function_call`` turn, whose content is their JSON (LLaMA-Factory)."""
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


def _parts(raw: RawRecord, content: Any, number: int) -> Parts:
    if isinstance(content, str):
        return raw.split(content)
    if isinstance(content, list | tuple):
        return tuple(piece for part in content for piece in _part(raw, part, number))
    if content is not None:
        raise BadRecord("bad_turn", f"the content of turn {number} is {named(content)}")
    return ()


def _part(raw: RawRecord, part: Any, number: int) -> Parts:
    kind = part_kind(part)
    if kind == "text":
        raw.note_unknown(part, PART_KEYS)
        text = _text_of(part, number)
        return raw.split(text) if text else (text,)
    if kind is not None:
        return (raw.part(kind, part),)
    if not isinstance(part, OBJECT):
        has = f"that is {named(part)}, not an object"
    elif part.get("type") is None:
        has = "without a type"
    else:
        has = f"of unknown type {cut(part['type'])}"
    known = ", ".join(LIST_KEYS)
    raise BadRecord("bad_turn", f"turn {number} has a content part {has}: known are text, {known}")


def _text_of(part: Any, number: int) -> str:
    return text_of(
        part if isinstance(part, str) else part.get("text"), f"a text part of turn {number}"
    )


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


def _with_system(raw: RawRecord, turns: list[Turn]) -> tuple[Turn, ...]:
    stated = [name for name in SYSTEM if raw.columns.get(name) not in (None, "")]
    if not stated:
        return tuple(turns)
    if len(stated) > 1:
        raise BadRecord(
            UNUSED, f"the record has both {' and '.join(map(repr, stated))}: ignore one"
        )
    name, system = stated[0], text_of(raw.columns[stated[0]], stated[0])
    if turns[0].role == "system":
        if turns[0].parts == (system,):
            return tuple(turns)
        raise BadRecord("bad_turn", f"the record has both {name!r} and a leading system turn")
    return (Turn("system", (system,)), *turns)


# -- columns that change what a conversation means -------------------------------------------------


def refuse_flags(record: Mapping[str, Any]) -> None:
    """Raise a BadRecord if a column says that other messages are trained on than the policy's."""
    for name, value in record.items():
        wanted = _usual_flag(name)
        if wanted == _ANY and str(value).lower() not in ROLES:
            flags = value if isinstance(value, list | tuple) else [value]
            if not flags or not all(type(f) in (bool, int) and f in (0, 1) for f in flags):
                continue
        if wanted == _NO_FLAG or (not value and type(value) not in (bool, int, float)):
            continue
        if wanted is None or type(value) not in (bool, int, float) or value != wanted:
            text = f"the column {name!r} is {cut(value)}, which says what is trained on: write it"
            raise BadRecord(UNUSED, f"{text} into the turns as 'train', or give --ignore {name}")


@lru_cache(4096)
def _usual_flag(name: str) -> bool | str | None:
    return next((value for value, names in _FLAGS if re.fullmatch(names, name)), _NO_FLAG)


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
