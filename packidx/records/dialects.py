"""Raw records of every known dialect → `Conversation`.

ShareGPT (``conversations`` of ``from``/``value``), OpenAI (``messages`` of ``role``/``content``)
and NeMo (``conversation``, ``_text_tokens``, ``mm_inputs_meta``) differ in names only. So one
parser takes any of the names: it looks for the turns under the keys of `TURN_KEYS` in that order.

A placeholder (``<image>``, ``<video>``) in any text stands for the next entry of the record's own
list (``image``/``images``, ``video``/``videos``), as does a content part without a reference.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media, Turn

TURN_KEYS = ("messages", "conversations", "conversation")
LIST_KEYS = {"image": ("images", "image"), "video": ("videos", "video")}

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_OBJECT = (dict, Mapping)  # dict first: asking an abstract class is slow
_TURN_OWN_KEYS = frozenset(("role", "from", "content", "value"))
_PART_KINDS = {
    "text": "text",
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
}
_REFERENCE_KEYS = ("bytes", "base64", "image", "video", "image_url", "video_url", "path", "url")
_PLACEHOLDER = re.compile("<(image|video)>")
_MAX_PIXELS_PER_SIDE = 10_000_000  # far over any image; keeps products of sides within int64
_MAX_TOKENS = 2**31 - 1  # the columns are int32


def parse(record: Any) -> Conversation:
    """A raw record as a conversation.

    Args:
        record: a decoded JSON object; image references may also be bytes or opened PIL images.

    Raises:
        BadRecord: ``bad_record``, ``no_messages``, ``bad_turn``, ``unknown_role``, ``bad_media``,
            ``media_mismatch``, ``bad_text_tokens`` or ``bad_meta``.
    """
    if not isinstance(record, _OBJECT):
        raise BadRecord("bad_record", f"the record is {_named(record)}, not an object")
    if record.get("audio") or record.get("audios"):
        raise BadRecord("unsupported_media", "the record has audio, which cannot be counted yet")
    lists = _MediaLists(record)
    turns = [_turn(turn, number, lists) for number, turn in enumerate(_raw_turns(record))]
    lists.check()
    conversation = Conversation(
        _with_system(record, turns), _text_tokens(record), _tools(record.get("tools"))
    )
    meta = record.get("mm_inputs_meta")
    return conversation if meta is None else _with_meta(conversation, meta)


def is_opened(value: Any) -> bool:
    """Whether `value` is an opened (PIL) image; says so without importing PIL."""
    return hasattr(value, "getexif") and hasattr(value, "size")


def part_kind(part: Any) -> str | None:
    """``'text'``, ``'image'`` or ``'video'``: what a content part is, or None if unknown."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, _OBJECT):
        return None
    kind = part.get("type")
    if kind is None:  # {"image": …} and {"text": …}, as Qwen's first chat format had it
        return next((_PART_KINDS[key] for key in _PART_KINDS if part.get(key) is not None), None)
    return _PART_KINDS.get(kind) if isinstance(kind, str) else None


def reference_of(entry: Any) -> Any:
    """The path, URL, bytes or opened image an entry of a media list or content part names.

    Raises:
        BadRecord: ``bad_media``, the entry is of no known form.
    """
    if isinstance(entry, _OBJECT):
        for key in _REFERENCE_KEYS:
            value = entry.get(key)
            if value is None:
                continue
            if isinstance(value, str) and key in ("bytes", "base64"):
                return _from_base64(value)
            if isinstance(value, _OBJECT):  # {"image_url": {"url": …}}
                value = next((value[k] for k in _REFERENCE_KEYS if value.get(k) is not None), None)
            return _plain_reference(value)
        return None
    return _plain_reference(entry)


def _plain_reference(entry: Any) -> Any:
    if isinstance(entry, str | bytes) or is_opened(entry):
        return entry
    raise BadRecord("bad_media", f"a media reference is {_named(entry)}, not a path or image")


def media_entries(record: Mapping[str, Any], kind: str) -> tuple[str | None, list[Any]]:
    """The key and the entries of the record's own list of images or videos.

    Raises:
        BadRecord: ``bad_media``, both ``image`` and ``images`` are given.
    """
    given = [key for key in LIST_KEYS[kind] if record.get(key) not in (None, [], "")]
    if not given:
        return None, []
    if len(given) > 1:
        raise BadRecord("bad_media", f"the record has both {given[0]!r} and {given[1]!r}")
    value = record[given[0]]
    return given[0], list(value) if isinstance(value, list | tuple) else [value]


class _MediaLists:
    """The record's own media, handed out to the placeholders in order of appearance."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._listed: dict[str, list[Media]] = {}
        for kind in LIST_KEYS:
            entries = media_entries(record, kind)[1]
            self._listed[kind] = [_medium(kind, entry) for entry in entries]
            if any(medium.ref is None for medium in self._listed[kind]):
                raise BadRecord("bad_media", f"an entry of the record's {kind}s names nothing")
        self._used = dict.fromkeys(LIST_KEYS, 0)

    def next(self, kind: str) -> Media:
        number = self._used[kind]
        self._used[kind] = number + 1
        listed = self._listed[kind]
        return listed[number] if number < len(listed) else Media(kind)

    def check(self) -> None:
        for kind, used in self._used.items():
            listed = len(self._listed[kind])
            if used != listed:
                text = f"{used} placeholder(s) for {kind}s but {listed} {kind}(s) in the record"
                raise BadRecord("media_mismatch", text)


def _raw_turns(record: Mapping[str, Any]) -> list[Any]:
    key = next((key for key in TURN_KEYS if record.get(key) is not None), None)
    if key is None:
        raise BadRecord("no_messages", f"the record has none of {', '.join(TURN_KEYS)}")
    turns = record[key]
    if not isinstance(turns, list | tuple):
        raise BadRecord("no_messages", f"{key!r} is {_named(turns)}, not a list")
    if not turns:
        raise BadRecord("no_messages", f"{key!r} is empty")
    return list(turns)


def _turn(turn: Any, number: int, lists: _MediaLists) -> Turn:
    if not isinstance(turn, _OBJECT):
        raise BadRecord("bad_turn", f"turn {number} is {_named(turn)}, not an object")
    stated = turn.get("role", turn.get("from"))
    role = _ROLES.get(stated) if isinstance(stated, str) else None
    if role is None:
        raise BadRecord("unknown_role", f"turn {number} has the role {_cut(stated)}")
    extra = {key: value for key, value in turn.items() if key not in _TURN_OWN_KEYS}
    content = turn["content"] if "content" in turn else turn.get("value")
    if content is None and not extra.get("tool_calls"):
        raise BadRecord("bad_turn", f"turn {number} has no content")
    return Turn(role, tuple(_parts(content, number, lists)), extra)


def _parts(content: Any, number: int, lists: _MediaLists) -> Iterator[str | Media]:
    if isinstance(content, str):
        yield from _split(content, lists)
    elif isinstance(content, list | tuple):
        for part in content:
            yield from _part(part, number, lists)
    elif content is not None:
        raise BadRecord("bad_turn", f"the content of turn {number} is {_named(content)}")


def _part(part: Any, number: int, lists: _MediaLists) -> Iterator[str | Media]:
    kind = part_kind(part)
    if kind == "text":
        text = part if isinstance(part, str) else part.get("text")
        if not isinstance(text, str):
            raise BadRecord("bad_turn", f"a text part of turn {number} is {_named(text)}")
        yield from _split(text, lists)
    elif kind is not None:
        medium = _medium(kind, part)
        yield lists.next(kind) if medium.ref is None else medium
    else:
        stated = _cut(part.get("type") if isinstance(part, _OBJECT) else part)
        raise BadRecord(
            "bad_turn", f"turn {number} has a content part of unknown type {_cut(stated)}"
        )


def _split(text: str, lists: _MediaLists) -> Iterator[str | Media]:
    if "<image>" not in text and "<video>" not in text:
        if text:
            yield text
        return
    for number, piece in enumerate(_PLACEHOLDER.split(text)):
        if number % 2:
            yield lists.next(piece)
        elif piece:
            yield piece


def _medium(kind: str, entry: Any) -> Media:
    if kind == "video" and isinstance(entry, list | tuple):
        return Media(kind, list(entry))  # frames; counted as one video
    ref = reference_of(entry)
    if is_opened(ref):
        width, height = ref.size
        return Media(kind, ref, int(height), int(width))
    if isinstance(entry, _OBJECT):
        return Media(kind, ref, *_stated(entry, "bad_media"))
    return Media(kind, ref)


def _stated(entry: Mapping[str, Any], reason: str) -> tuple[int | None, int | None, int | None]:
    """(height, width, tokens) an object states; sizes count only when both are there."""
    height = _integer(entry.get("height"), 1, _MAX_PIXELS_PER_SIDE, "height", reason)
    width = _integer(entry.get("width"), 1, _MAX_PIXELS_PER_SIDE, "width", reason)
    tokens = _integer(entry.get("n_tokens"), 0, _MAX_TOKENS, "n_tokens", reason)
    if height is None or width is None:
        return None, None, tokens
    return height, width, tokens


def _integer(value: Any, low: int, high: int, name: str, reason: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise BadRecord(reason, f"{name} is {_cut(value)}, not an integer from {low} to {high}")
    return value


def _text_tokens(record: Mapping[str, Any]) -> int | None:
    stated = record.get("_text_tokens")
    return _integer(stated, 0, _MAX_TOKENS, "_text_tokens", "bad_text_tokens")


def _tools(tools: Any) -> list[Any] | None:
    if isinstance(tools, str) and tools.strip():  # LLaMA-Factory keeps them as JSON text
        try:
            tools = orjson.loads(tools)
        except ValueError:
            raise BadRecord("bad_record", "'tools' is text that is not JSON") from None
    if not tools or tools == "" or isinstance(tools, str):
        return None
    if not isinstance(tools, list):
        raise BadRecord("bad_record", f"'tools' is {_named(tools)}, not a list")
    return tools


def _with_system(record: Mapping[str, Any], turns: list[Turn]) -> tuple[Turn, ...]:
    system = record.get("system")
    if system is None or system == "":
        return tuple(turns)
    if not isinstance(system, str):
        raise BadRecord("bad_turn", f"'system' is {_named(system)}, not text")
    if turns[0].role == "system":
        raise BadRecord("bad_turn", "the record has both 'system' and a leading system turn")
    return (Turn("system", (system,)), *turns)


def _with_meta(conversation: Conversation, meta: Any) -> Conversation:
    """`conversation` with the sizes and token counts of NeMo's ``mm_inputs_meta``."""
    if not isinstance(meta, _OBJECT):
        raise BadRecord("bad_meta", f"'mm_inputs_meta' is {_named(meta)}, not an object")
    stated = {
        kind: _meta_entries(meta.get(f"{kind}s_meta"), kind, conversation) for kind in LIST_KEYS
    }

    def completed(part: str | Media) -> str | Media:
        if isinstance(part, str) or part.kind not in stated:
            return part
        height, width, tokens = next(stated[part.kind])
        if part.height is not None or height is None:  # an opened image knows better
            height, width = part.height, part.width
        return Media(part.kind, part.ref, height, width, part.tokens if tokens is None else tokens)

    turns = tuple(
        Turn(turn.role, tuple(map(completed, turn.parts)), turn.extra)
        for turn in conversation.turns
    )
    return Conversation(turns, conversation.text_tokens, conversation.tools)


def _meta_entries(
    entries: Any, kind: str, conversation: Conversation
) -> Iterator[tuple[int | None, int | None, int | None]]:
    count = sum(medium.kind == kind for medium in conversation.media)
    if entries is None:
        entries = [None] * count
    if not isinstance(entries, list | tuple):
        raise BadRecord("bad_meta", f"'{kind}s_meta' is {_named(entries)}, not a list")
    if len(entries) != count:
        text = f"'{kind}s_meta' has {len(entries)} entries but the record has {count} {kind}(s)"
        raise BadRecord("bad_meta", text)
    return iter([_meta_entry(entry, kind) for entry in entries])


def _meta_entry(entry: Any, kind: str) -> tuple[int | None, int | None, int | None]:
    if entry is None:
        return None, None, None
    if isinstance(entry, _OBJECT):
        return _stated(entry, "bad_meta")
    if isinstance(entry, list | tuple) and len(entry) == 2:
        return _stated({"height": entry[0], "width": entry[1]}, "bad_meta")
    raise BadRecord("bad_meta", f"an entry of '{kind}s_meta' is {_cut(entry)}, not [height, width]")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRecord("bad_media", "a media entry's 'bytes' is text that is not base64") from None


_NAMES = {
    dict: "an object",
    list: "a list",
    tuple: "a list",
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def _named(value: Any) -> str:
    """What `value` is, in JSON's words."""
    return _NAMES.get(type(value), type(value).__name__)


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
