"""Find media, by names or first bytes, and prose in a value.

Nobody has to know a data set for it: what a column is called says nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from packidx.io.ranges import Extent
from packidx.records.media.references import BASE64, OBJECT, is_base64, opened_kind

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
_UNREAD = ("heic", "heif", "svg", "jfif", "ico", "jxl", "j2k", "jpx", "dng", "psd", "exr", "tga")
PAGES = (".pdf", ".eps", ".djvu")
"""Ends of files' names that are media where they lie beside a record."""
_READ = {ending: kind for kind, endings in EXTENSIONS.items() for ending in endings}
_KINDS = {**_READ, **dict.fromkeys(_UNREAD, "image")}
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

_ARTICLES = {"image": "an image", "video": "a video", "audio": "a sound"}
_BETWEEN_WORDS, _LETTER = re.compile(r"\S\s+\S|[。，、！？：；]"), re.compile(r"[^\W\d]")
_LONG_WORD = 20


def kind_of_name(name: str) -> str | None:
    """The kind of medium that is read, by the last part of a name; None for any other file."""
    return _READ.get(name.rpartition(".")[2].lower())


def ending_of(head: bytes) -> str | None:
    """The extension of a medium whose first 80 bytes these are; None where they tell none."""
    return next((ending for ending, magic in _KNOWN if magic.match(head)), None)


def media_in(value: Any, depth: int = 0) -> str | None:
    """The kind of the first medium in a value, however deep; None where there is none."""
    if isinstance(value, str):
        return _in_text(value, depth)
    if isinstance(value, bytes):
        return _KINDS.get(ending_of(value[:80]) or "")
    if (kind := opened_kind(value)) is not None:
        return kind
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
    _, dot, ending = text[-_LONGEST - 1 :].rpartition(".")
    is_url = "://" in text[:8] and ("?" in text or "#" in text)
    may_hold = (dot and ending.lower() in _KINDS) or text.startswith(_BEGINNINGS)
    if not (may_hold or is_url or "<img>" in text):
        return None  # as nearly all are
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


def content_in(value: Any, depth: int = 0) -> str | None:
    """Return what a value holds that a model could be shown, in words: media, prose, objects; None
    for numbers, ids, single words and the like."""
    if isinstance(value, str):
        kind = media_in(value, depth)
        if kind is None:
            return "text" if is_prose(value) else None
        return _ARTICLES[kind]
    if isinstance(value, bytes | Extent) or (isinstance(value, OBJECT) and value.get("bytes")):
        return _ARTICLES.get(media_in(value) or "", "bytes")
    if (opened := opened_kind(value)) is not None:
        return _ARTICLES[opened]
    inside = (content_in(item, depth + 1) for item in _items(value, depth))
    is_list = isinstance(value, list | tuple) and any(isinstance(item, OBJECT) for item in value)
    return next(filter(None, inside), "objects" if is_list else None)


def is_prose(text: str) -> bool:
    """Return True for texts with white space between words, JSON, and long ones that are not ASCII:
    Chinese has no spaces."""
    if text.startswith(("{", "[{", '["')):
        return len(text) > 2
    if _BETWEEN_WORDS.search(text) and _LETTER.search(text):
        return True
    return len(text) > _LONG_WORD and not text.isascii()
