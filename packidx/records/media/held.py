"""What a value holds that a model could be shown: media, by names or first bytes, and turns.

Nobody has to know a data set for it: what a column is called says nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from packidx.records.media.references import (
    BASE64,
    OBJECT,
    is_base64,
    is_opened,
    is_sound,
    is_video,
)

EXTENSIONS = {
    "image": frozenset(
        ("jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "ppm")
    ),
    "video": frozenset(
        ("mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "flv", "wmv", "ogv")
    ),
    "audio": frozenset(("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "wma", "aiff")),
}
"""Last parts of extensions, by the kind of medium."""
_UNREAD = {  # media all the same
    "image": ("heic", "heif", "svg", "jfif", "ico", "jxl", "j2k", "jpx", "dng", "psd", "exr", "tga")
}
PAGES = (".pdf", ".eps", ".djvu")
"""Ends of files' names that are media where they lie beside a record."""
_KINDS = {
    ending: kind
    for endings in (EXTENSIONS, _UNREAD)
    for kind, names in endings.items()
    for ending in names
}
_LONGEST = max(map(len, _KINDS))

_MAGIC = (  # as in file(1)
    ("jpg", rb"\xff\xd8\xff"),
    ("png", rb"\x89PNG\r\n\x1a\n"),
    ("webp", rb"RIFF....WEBP"),
    ("gif", rb"GIF8[79]a"),
    ("bmp", rb"BM....\0\0\0\0"),
    ("tiff", rb"II\*\0|MM\0\*|II\+\0|MM\0\+"),
    ("avif", rb"....ftyp.{0,40}?avi[fs]"),
    ("heic", rb"....ftyp(?:hei[cx]|mif1|msf1)"),
    ("jp2", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
    ("ppm", rb"P[36]\s"),
    ("mov", rb"....ftypqt  |....(?:moov|mdat|wide|free)"),
    ("m4a", rb"....ftypM4A"),
    ("mp4", rb"....ftyp"),
    ("webm", rb"\x1a\x45\xdf\xa3.{0,60}?webm"),
    ("mkv", rb"\x1a\x45\xdf\xa3"),
    ("avi", rb"RIFF....AVI "),
    ("flv", rb"FLV\x01"),
    ("wmv", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    ("mpg", rb"\0\0\x01[\xba\xb3]"),
    ("opus", rb"OggS.{24,56}OpusHead"),
    ("ogg", rb"OggS.{24,56}\x01vorbis"),
    ("ogv", rb"OggS"),
    ("wav", rb"RIFF....WAVE"),
    ("flac", rb"fLaC"),
    ("mp3", rb"ID3|\xff[\xfb\xfa\xf3\xf2]"),
)
_KNOWN = [(name, re.compile(pattern, re.DOTALL)) for name, pattern in _MAGIC]
_IN_TEXT = re.compile(r"<img>[^<>]{1,2000}</img>")
_DATA = re.compile("data:(image|video|audio)/")
_BEGINNINGS = ("[", "{", " ", "\t", "\n", "data:", *BASE64)
_MAX_NAME = 2048
_MAX_DEPTH = 8
NUMBERS = frozenset((int, float, bool, type(None)))

SPEAKERS = frozenset(("role", "from", "speaker", "sender", "author", "who"))
"""Names of keys that say who speaks."""
_SAID = frozenset(
    ("question", "answer", "user", "assistant", "human", "gpt", "bot", "q", "a")
    + ("prompt", "response", "instruction", "output", "query", "completion", "reply")
)


def kind_of_name(name: str) -> str | None:
    """The kind of medium that is read, by the last part of a name; None for any other file."""
    ending = name.rpartition(".")[2].lower()
    return next((kind for kind, endings in EXTENSIONS.items() if ending in endings), None)


def ending_of(head: bytes) -> str | None:
    """The extension of a medium whose first 80 bytes these are; None where they tell none."""
    return next((ending for ending, magic in _KNOWN if magic.match(head)), None)


def is_plain(text: str) -> bool:
    """Return whether a text can be told quickly to hold neither a medium nor JSON."""
    _, dot, ending = text[-_LONGEST - 1 :].rpartition(".")
    if (dot and ending.lower() in _KINDS) or text.startswith(_BEGINNINGS) or "<img>" in text:
        return False
    return "://" not in text[:8] or ("?" not in text and "#" not in text)


def media_in(value: Any, depth: int = 0) -> str | None:
    """The kind of the first medium in a value, however deep; None where there is none."""
    if isinstance(value, str):
        return _in_text(value, depth)
    if isinstance(value, bytes):
        return _KINDS.get(ending_of(value[:80]) or "")
    if is_opened(value):
        return "image"
    if is_video(value) or is_sound(value):
        return "video" if is_video(value) else "audio"
    if isinstance(value, OBJECT) and value.keys() == {"bytes", "path"} and value["bytes"]:
        named = [media_in(value[name], depth + 1) for name in ("bytes", "path")]
        return named[0] or named[1] or "image"  # how `datasets` stores a medium
    kinds = (media_in(item, depth + 1) for item in _items(value, depth))
    return next((kind for kind in kinds if kind is not None), None)


def _items(value: Any, depth: int) -> Iterator[Any]:
    if depth >= _MAX_DEPTH:
        return iter(())
    if isinstance(value, OBJECT):
        return iter(value.values())
    if isinstance(value, list | tuple) and not NUMBERS.issuperset(map(type, value)):
        return iter(value)
    return iter(())


def _in_text(text: str, depth: int) -> str | None:
    if is_plain(text):
        return None
    if (inner := _json(text)) is not None:
        return media_in(inner, depth + 1)
    if _IN_TEXT.search(text):
        return "image"
    if (stated := _DATA.match(text)) is not None:
        return stated[1]
    if is_base64(text):
        return "image"
    name = text.strip().lower()
    if len(name) > _MAX_NAME or "\n" in name:
        return None
    path = re.split("[?#]", name, maxsplit=1)[0] if "://" in name else name
    endings = (stem[2] for stem in (path.rpartition("."), name.rpartition(".")) if stem[0])
    return next((_KINDS[ending] for ending in endings if ending in _KINDS), None)


def _json(text: str) -> Any:
    """The list or object that a text is as JSON; None where it is none."""
    core = text.strip()
    if core[:1] + core[-1:] not in ("[]", "{}"):
        return None
    try:
        return orjson.loads(core)
    except ValueError:
        return None


def texts_of(value: Any, depth: int = 0) -> list[str]:
    """All texts in a value, in order."""
    if isinstance(value, str):
        inner = _json(value)
        return [value] if inner is None else texts_of(inner, depth + 1)
    return [text for item in _items(value, depth) for text in texts_of(item, depth + 1)]


def turns_in(value: Any, depth: int = 0) -> list[Any] | None:
    """The turns of a talk, or its questions and answers, that a value holds; None where it holds
    none. They are objects, or pairs of texts, and may be JSON in a text."""
    if isinstance(value, str):
        inner = _json(value)
        return None if inner is None else turns_in(inner, depth + 1)
    if isinstance(value, list | tuple) and value:
        if all(isinstance(item, OBJECT) for item in value) and _are_turns(value):
            return list(value)
        if all(isinstance(item, list | tuple) and _are_texts(item) for item in value):
            return list(value)
    if isinstance(value, OBJECT):
        lists = [item for item in value.values() if isinstance(item, list | tuple) and item]
        if len(lists) == len(value) > 1 and len({*map(len, lists)}) == 1:  # as `datasets` had it
            rows = [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)]
            if _are_turns(rows):
                return rows
    inside = (turns_in(item, depth + 1) for item in _items(value, depth))
    return next((turns for turns in inside if turns), None)


def _are_texts(item: Sequence[Any]) -> bool:
    return len(item) == 2 and all(isinstance(text, str) for text in item)


def _are_turns(items: Sequence[Any]) -> bool:
    """Return whether each of some objects says who speaks and what, or asks and answers."""
    names = {name for name in items[0] if all(name in item for item in items)}
    texts = {name for name in names if all(isinstance(item[name], str) for item in items)}
    if len({name for name in texts if name.lower() in _SAID}) > 1:
        return True
    for role in texts:
        words = [item[role] for item in items]
        repeats = len(items) > 1 and len({*words}) <= max(2, min(5, len(items) - 1))
        short = max(map(len, words)) <= 30 and not any(word.isdigit() for word in words)
        others = [n for n in names - {role} if isinstance(items[0][n], str | list | tuple)]
        if others and short and (role.lower() in SPEAKERS or (repeats and len(texts) > 1)):
            return True
    return False


def said_in(turns: Sequence[Any]) -> list[str]:
    """Return what turns say, without who says it: the texts of the key that has most of them."""
    lengths: dict[str, int] = {}
    for turn in turns:
        for name, item in turn.items() if isinstance(turn, OBJECT) else ():
            lengths[name] = lengths.get(name, 0) + sum(map(len, texts_of(item)))
    told = {n for n, size in lengths.items() if size and n.lower() not in SPEAKERS}
    asked = {name for name in told if name.lower() in _SAID}
    keys = asked if len(asked) > 1 else {max(told, key=lambda name: lengths[name], default="")}
    said = [
        [item for name, item in turn.items() if name in keys] if isinstance(turn, OBJECT) else turn
        for turn in turns
    ]
    return texts_of(said)
