"""Messages of a chat: ShareGPT, OpenAI and NeMo.

ShareGPT (``conversations`` of ``from``/``value``), OpenAI (``messages`` of ``role``/``content``)
and NeMo (``conversation``) differ in names only, so one reader takes any of the names. A call and
what the assistant says before it are one message, as parallel calls are: the model does not end its
turn before it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.format.manifest import Layout
from packidx.format.terms import TAGS
from packidx.records.conversation import SAID, Conversation, Media, Turn
from packidx.records.dialects.raw_record import SYSTEM, Parts, RawRecord
from packidx.records.media import references as refs

_CALL_ROLES = frozenset(("function_call", "tool_call"))
OF_TEMPLATES = {"developer": "system", "function": "tool", "ipython": "tool"}
"""Words for roles that templates may know themselves: these get the word, others the role."""
_WORDS = {
    "system": ("system",),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", *_CALL_ROLES),
    "tool": ("tool", "observation", "function_response", "tool_response"),
}
ROLES = {word: role for role, words in _WORDS.items() for word in words} | OF_TEMPLATES
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
_WHOLE = [("video", False, False)]
_TIME = re.compile(r"(?=.*[1-9])\d+(?::\d+){0,2}(?:[.,]\d+)?s?")


def read_messages(key: str, raw: RawRecord) -> Conversation | None:
    """Chats whose messages stand under one key."""
    messages = raw.columns.get(key)
    return None if messages is None else read_chat(raw, messages, key)


def read_chat(raw: RawRecord, messages: Any, name: str) -> Conversation:
    """Return the conversation of the list of messages in column `name`, or the document of a single
    one; else a BadRecord (``no_messages``, ``bad_turn``, ``unknown_role``, ``bad_media``,
    ``media_mismatch``)."""
    if not isinstance(messages, list | tuple) or not messages:
        has = (
            "empty"
            if isinstance(messages, list | tuple)
            else f"{refs.name_type(messages)}, not a list"
        )
        raise BadRecord("no_messages", f"{name!r} is {has}")
    if len(messages) == 1 and refs.role_of(messages[0]) == DOCUMENT:
        content = messages[0].get("content")
        return build_document(raw, content if isinstance(content, list | tuple) else [content])
    return build_chat(raw, read_turns(raw, messages))


def build_chat(raw: RawRecord, turns: list[Turn]) -> Conversation:
    """Return a conversation of turns, with the record's system prompt, tools and media; a BadRecord
    if media and placeholders do not match."""
    columns = raw.columns
    _refuse_flags(raw)
    raw.place(turns)
    raw.check()
    _refuse_cut(raw, turns)
    count, tools = raw.text_tokens, columns.get("tools")
    if isinstance(tools, str):  # LLaMA-Factory keeps them as JSON text
        try:
            tools = orjson.loads(tools) if tools.strip() else None
        except ValueError:
            raise BadRecord("bad_record", "'tools' is text that is not JSON") from None
    if not isinstance(tools, list | None):
        raise BadRecord("bad_record", f"'tools' is {refs.name_type(tools)}, not a list")
    refs.refuse_rounded(tools, "tools")
    stated = [name for name in SYSTEM if columns.get(name) not in (None, "")]
    raw.refused |= dict.fromkeys(stated[1:], "a second system prompt")
    for name in stated[:1]:
        system = refs.text_of(columns[name], name)
        if turns[0].role != "system":
            turns = [Turn("system", (system,)), *turns]
        elif turns[0].parts != (system,):
            raise BadRecord("bad_turn", f"the record has both {name!r} and a leading system turn")
    return Conversation(tuple(turns), count, tools, has_literal=raw.has_literal)


def pair_turns(raw: RawRecord, pairs: Sequence[tuple[Any, Any]]) -> list[Turn]:
    """Return the turns of (question, answer) pairs."""
    if not pairs:
        raise BadRecord("no_messages", "the record has no question with its answer")
    return [
        Turn(role, raw.split(refs.text_of(said, f"{role} of entry {number}")))
        for number, pair in enumerate(pairs)
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]


DOCUMENT = "document"
"""The role of a document's turn: it has no chat template and no question."""


def build_document(raw: RawRecord, content: Sequence[Any]) -> Conversation:
    """Return a document of texts and media, which are trained on as a whole; texts stay as they
    are. A BadRecord (``no_messages``) if it is empty."""
    _refuse_flags(raw)
    parts = tuple(part for part in _read_parts(raw, content, 0, is_whole=True) if part != "")
    if not parts:
        raise BadRecord("no_messages", "the document is empty")
    raw.check()
    return Conversation((Turn("assistant", parts),), raw.text_tokens, is_document=True)


def standard_message(message: Any, layout: Layout) -> Any:
    """`message` with the standard keys and roles; itself if the layout has no other ones."""
    tags, left_out = layout.tags, frozenset(layout.ignore) - _NEVER_LEFT_OUT
    if not isinstance(message, dict) or not (tags or left_out & message.keys()):
        return message
    roles = {w: TAGS[tag] for tag, own in tags.items() for w in (own, *own.split(",")) if TAGS[tag]}
    said: list[Any] = []
    for tag, usual in (("role_tag", _ROLE_KEYS), ("content_tag", _CONTENT_KEYS)):
        key = tags.get(tag) or next((key for key in usual if key in message), "")
        said.append(message.get(key))
        left_out |= {key, *usual}
    role = roles.get(said[0], said[0]) if isinstance(said[0], str) else said[0]
    rest = {key: value for key, value in message.items() if key not in left_out}
    return {"role": role, "content": said[1], **rest}


def are_messages(value: Any, layout: Layout) -> bool:
    """Return True for a message, or a list of messages, that have a role."""
    listed = [value] if isinstance(value, refs.OBJECT) else value
    if not isinstance(listed, list | tuple) or not listed:
        return False
    return all(refs.role_of(standard_message(each, layout)) is not None for each in listed)


def read_turns(raw: RawRecord, messages: Sequence[Any]) -> list[Turn]:
    """Return the turns of messages, calls joined with what the assistant says before them."""
    layout = raw.layout
    is_own = bool(layout.tags or layout.ignore)
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        message = standard_message(message, layout) if is_own else message
        turn, is_call = _read_turn(raw, message, number)
        if not is_call or not turns or turns[-1].role != "assistant":
            turns.append(turn)
            continue
        said = turns[-1]
        calls = {"tool_calls": [*said.extra.get("tool_calls", ()), *turn.extra["tool_calls"]]}
        extra = {**turn.extra, **said.extra, **calls}
        if said.train != turn.train or {**extra, **turn.extra, **calls} != extra:
            text = f"turn {number} is a call of the turn before it, and they differ in a key"
            raise BadRecord("bad_turn", f"{text} or their loss")
        turns[-1] = replace(said, extra=extra)
    return turns


def _read_turn(raw: RawRecord, message: Any, number: int) -> tuple[Turn, bool]:
    """Return a message as a turn, and whether its role is that of a call."""
    if not isinstance(message, refs.OBJECT):
        raise BadRecord("bad_turn", f"turn {number} is {refs.name_type(message)}, not an object")
    stated = message["role"] if "role" in message else message.get("from")
    role = ROLES.get(stated) if isinstance(stated, str) else None
    if role is None:
        has = "no role" if stated is None else f"the role {refs.clip_repr(stated)}"
        text = f"turn {number} has {has}: known are {', '.join(ROLES)}"
        raise BadRecord("unknown_role", text)
    content = refs.content_of(message)
    if len(message) == 2 and type(content) is str and stated not in _SPECIAL:  # as nearly all are
        return Turn(role, raw.split(content)), False
    raw.note_unknown(message, MESSAGE_KEYS)
    extra = {key: value for key, value in message.items() if key not in _OWN_KEYS}
    train = None if _TRAIN_KEYS.isdisjoint(message) else _read_train_flag(message, number)
    if stated in _CALL_ROLES:
        content, extra = "", {"tool_calls": _read_calls(content, number), **extra}
    if content is None:
        if extra.get("function_call") and not extra.get("tool_calls"):
            extra["tool_calls"] = _read_calls(extra.pop("function_call"), number)
        if not extra.get("tool_calls"):
            raise BadRecord("bad_turn", f"turn {number} has no content")
        extra["content"] = None
    for key in _CALLS & extra.keys():
        refs.refuse_rounded(extra[key], key)
    if stated in OF_TEMPLATES:
        extra["role"] = stated
    parts = _read_parts(raw, content, number)
    is_text = len(parts) < 2 and all(isinstance(part, str) for part in parts)
    as_list = is_text and isinstance(content, list | tuple)
    return Turn(role, parts, extra, train, as_list), stated in _CALL_ROLES


def _read_train_flag(message: Mapping[str, Any], number: int) -> bool | None:
    """Return True or False if the message says so whether it is trained on."""
    stated = {key: message[key] for key in sorted(_TRAIN_KEYS) if message.get(key) is not None}
    for key, value in stated.items():
        if type(value) not in (bool, int, float) or value not in (0, 1):
            raise BadRecord("bad_turn", f"{key!r} of turn {number} is {refs.clip_repr(value)}")
    values = {bool(value) for value in stated.values()}
    if len(values) > 1:
        raise BadRecord("bad_turn", f"turn {number} has {refs.clip_repr(stated)}, a contradiction")
    return values.pop() if values else None


def _read_calls(content: Any, number: int) -> list[dict[str, Any]]:
    """Return the calls of a ``function_call`` turn, whose content is their JSON (LLaMA-Factory)."""
    try:
        calls = orjson.loads(content) if isinstance(content, str) else content
    except ValueError:
        raise BadRecord("bad_turn", f"the function call of turn {number} is not JSON") from None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and call.get("name") for call in calls):
        raise BadRecord("bad_turn", f"turn {number} calls no function: {refs.clip_repr(content)}")
    return [{"type": "function", "function": call} for call in calls]


def _read_parts(raw: RawRecord, content: Any, number: int, is_whole: bool = False) -> Parts:
    """Return the parts of a message's content; texts of a document are `is_whole`."""
    if isinstance(content, str):
        return raw.split(content)
    if not isinstance(content, list | tuple | None):
        raise BadRecord("bad_turn", f"the content of turn {number} is {refs.name_type(content)}")
    parts: list[str | Media] = []
    for part in content or ():
        kind = refs.part_kind(part)
        if isinstance(part, Media):
            parts.append(part)
        elif kind == "text":
            raw.note_unknown(part, refs.PART_KEYS)
            text = part if isinstance(part, str) else part.get("text")
            text = refs.text_of(text, f"a text part of turn {number}")
            parts += [text] if is_whole or not text else raw.split(text)
        elif kind is not None:
            parts.append(raw.part(kind, part))
        else:
            has = (
                f"of type {refs.clip_repr(part.get('type'))}"
                if isinstance(part, refs.OBJECT)
                else refs.name_type(part)
            )
            known = f"known are text, {', '.join(refs.LIST_KEYS)}"
            text = f"turn {number} has a content part {has}: {known}"
            raise BadRecord("bad_turn", text)
    return tuple(parts)


# -- columns that change what a conversation means -------------------------------------------------


def _refuse_flags(raw: RawRecord) -> None:
    """Refuse columns that say that other messages are trained on than the policy's."""
    for name, value in raw.columns.items():
        wanted = _usual_flag(name)
        if wanted == _NO_FLAG or (not value and type(value) not in (bool, int, float)):
            continue
        if wanted == _ANY and str(value).lower() not in ROLES:
            flags = value if isinstance(value, list | tuple) else [value]
            if not all(type(flag) in (bool, int) and flag in (0, 1) for flag in flags):
                continue
        if wanted is None or type(value) not in (bool, int, float) or value != wanted:
            raw.refused[name] = "says what is trained on, as 'train' of a message would"


@lru_cache(4096)
def _usual_flag(name: str) -> bool | str | None:
    return next((value for value, names in _FLAGS if re.fullmatch(names, name)), _NO_FLAG)


def _refuse_cut(raw: RawRecord, turns: Sequence[Turn]) -> None:
    """Refuse columns that ask for a part of a record's one video."""
    media = [part for turn in turns for part in turn.parts if isinstance(part, Media)]
    if [(m.kind, "frame_indices" in m.stated, isinstance(m.ref, list)) for m in media] != _WHOLE:
        return
    times = {key: str(value).strip() for key, value in raw.columns.items() if _END.fullmatch(key)}
    whole = str(raw.columns.get("duration"))
    if any(_TIME.fullmatch(time) and time != whole for time in times.values()):
        raw.refused |= dict.fromkeys(times, "a time in the video, which is taken as a whole")


# -- records of ``texts``: FineVision and The Cauldron, and LoongForge -----------------------------

OF_LOONGFORGE = frozenset(("texts", "media_files", "name", "media_type", "media", "_meta"))
"""Columns that LoongForge's records have."""


def read_finevision(raw: RawRecord) -> Conversation | None:
    """FineVision and The Cauldron: ``texts``, a list of ``user`` and ``assistant``.

    ``{"texts": [{"user": "What is it?", "assistant": "A cat."}], "images": ["a.png"]}``
    """
    texts = raw.columns.get("texts")
    if not isinstance(texts, list) or not texts:
        return None
    if not all(
        isinstance(each, refs.OBJECT) and {"user", "assistant"} <= each.keys() for each in texts
    ):
        return None
    return build_chat(raw, pair_turns(raw, [(each["user"], each["assistant"]) for each in texts]))


def read_loongforge(raw: RawRecord) -> Conversation | None:
    """LoongForge: ``texts`` of messages, or of ``prompts`` and ``captions``, and names of files.

    ``{"texts": {"prompts": ["<image>Who?"], "captions": ["A cat."]}, "media_files": ["a.png"]}``
    """
    columns = raw.columns
    texts, meta = columns.get("texts"), columns.get("_meta")
    if texts is None:
        return None
    if isinstance(meta, refs.OBJECT) and "token_lens" in meta:
        raise BadRecord("bad_record", "the record is an exported pack: read the data it came from")
    words = (columns.get("media_type"), columns.get("media"))
    stated = next((word for word in words if word is not None), None)
    files = columns.get("media_files")
    if files is None and stated is not None:  # without a stated kind, a name is just a name
        files = columns.get("name")
    own = {kind: refs.media_entries(columns, kind)[0] for kind in refs.LIST_KEYS}
    for file in _flatten_lists([] if files is None else files):
        if not isinstance(file, str):
            raise BadRecord("bad_media", f"a name of a medium is {refs.name_type(file)}, not text")
        kind = refs.kind_of_name(file) or (stated if isinstance(stated, str) else "")
        if kind not in refs.LIST_KEYS:
            text = f"neither media_type nor its ending says of which kind {refs.clip_repr(file)} is"
            raise BadRecord("bad_media", text)
        if own[kind] is not None:
            raise BadRecord("bad_media", f"the record has {own[kind]!r} beside files of its texts")
        raw.list_media(kind, file)
    if isinstance(texts, list):
        return read_chat(raw, texts, "texts")
    if not isinstance(texts, dict) or texts.get("captions") is None:
        text = f"'texts' is {refs.name_type(texts)}, neither turns nor prompts and captions"
        raise BadRecord("no_messages", text)
    captions = list(_flatten_lists(texts["captions"]))
    prompts = list(_flatten_lists(texts.get("prompts") or [""] * len(captions)))
    if len(prompts) != len(captions):
        raise BadRecord("bad_turn", f"{len(prompts)} prompts, {len(captions)} captions in 'texts'")
    return build_chat(raw, pair_turns(raw, list(zip(prompts, captions, strict=True))))


def _flatten_lists(value: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(value, list) or depth == 8:
        yield value
        return
    for item in value:
        yield from _flatten_lists(item, depth + 1)
