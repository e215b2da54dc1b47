"""References to media: entries of its media lists and parts of its content, of any form."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from packidx.errors import BadRecord
from packidx.io.ranges import Extent
from packidx.records.conversation import Media

TURN_KEYS = ("messages", "conversations", "conversation")
"""Keys of a record's turns, the first of which is taken."""
LIST_KEYS = {
    "image": ("images", "image"),
    "video": ("videos", "video"),
    "audio": ("audios", "audio"),
}
OBJECT = (dict, Mapping)  # dict first: asking an abstract class is slow
MAX_TOKENS = 2**31 - 1  # the columns are int32

_PART_KINDS = {
    "text": "text",
    **{f"{kind}{end}": kind for kind in LIST_KEYS for end in ("", "_url")},
    "input_audio": "audio",
}
REFERENCE_KEYS = (
    *("bytes", "base64", "image", "video", "audio", "image_url", "video_url", "audio_url"),
    *("input_audio", "data", "path", "url"),
)
"""Keys under which an object names a medium, the first of which is taken."""
_BASE64_KEYS = ("bytes", "base64", "data")
_OF_LISTS = ("frames", "video", "path")  # of an object that lists a video's frames
OF_FRAMES = {"fps": "fps", "sample_fps": "fps", "nframes": "num_frames"}
"""Requests of a video file that are facts where its frames are listed, or wholly described."""
_SIZES = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "detail")
_CUTS = ("start", "end", "start_time", "end_time")
_REQUESTS = {
    "image": _SIZES,
    "video": (*_SIZES, *_CUTS, *OF_FRAMES, "video_start", "video_end", "min_frames", "max_frames"),
    "audio": (*_CUTS, "audio_start", "audio_end", "offset"),
}
"""Keys by which an object asks for other sides, other frames or a part of its medium."""
_FACTS = (
    *("height", "width", "n_tokens", "num_frames", "nframes", "total_frames", "fps", "sample_fps"),
    *("frame_indices", "num_samples", "sampling_rate", "duration", "raw_fps"),
)
PART_KEYS = frozenset(
    ("type", "text", "frames", "format", *REFERENCE_KEYS, *_FACTS)
    + tuple(name for names in _REQUESTS.values() for name in names)
)
"""Keys of content parts and of entries of media lists that are read."""
_RANGES = {
    "height": (1, 10_000_000),  # far over any image; keeps products of sides within int64
    "width": (1, 10_000_000),
    "n_tokens": (0, MAX_TOKENS),
    "num_frames": (1, 2**31 - 1),
    "num_samples": (1, 2**40),
    "sampling_rate": (1, 10_000_000),
}
"""Least and most of what a record may state of a medium."""
_NO_BASE64 = re.compile("[^A-Za-z0-9+/=\\s]")
_NAME = re.compile("data:|[A-Za-z][A-Za-z0-9+.-]*://")


def opened_kind(value: Any) -> str | None:
    """Return the kind of an opened medium, without importing PIL or opening it; None otherwise."""
    own = type(value)
    if hasattr(own, "getexif"):
        return "image"
    if not hasattr(own, "info"):
        return None
    return "video" if hasattr(own, "frames") else "audio" if hasattr(own, "waveform") else None


def part_kind(part: Any) -> str | None:
    """``'text'`` or a kind of media: what a content part is, or None if unknown."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, OBJECT):
        return None
    kind = part.get("type")
    if kind is None:  # {"image": …} and {"text": …}, as Qwen's first chat format had it
        return next((_PART_KINDS[key] for key in _PART_KINDS if part.get(key) is not None), None)
    return _PART_KINDS.get(kind) if isinstance(kind, str) else None


def reference_of(entry: Any) -> Any:
    """The path, URL, bytes or opened medium that an entry of a media list or content part names;
    a BadRecord (``bad_media``) if the entry is of no known form."""
    key, value = "", entry
    for depth in range(0 if type(entry) is str else 2):  # {"image_url": {"url": …}}
        if isinstance(value, OBJECT):
            key = next((each for each in REFERENCE_KEYS if value.get(each) is not None), "")
            if not key and not depth:
                return None
            value = value.get(key)
    if isinstance(value, str):
        if is_base64(value) or (key in _BASE64_KEYS and not _NAME.match(value)):
            try:
                return base64.b64decode("".join(value.split()), validate=True)
            except ValueError:
                raise BadRecord("bad_media", "a media entry's text is not base64") from None
    elif not isinstance(value, bytes | Extent) and opened_kind(value) is None:
        raise BadRecord("bad_media", f"a media reference is {name_type(value)}, no path or image")
    return value


def media_entries(record: Mapping[str, Any], kind: str) -> tuple[str | None, list[Any]]:
    """The key and the entries of the record's own list of images, videos or sounds; a BadRecord
    (``bad_media``) if both ``image`` and ``images`` are given."""
    values = [(key, record.get(key)) for key in LIST_KEYS[kind]]
    given = [k for k, v in values if v or not (v is None or type(v) in (list, tuple, str))]
    if not given:
        return None, []
    if len(given) > 1:
        raise BadRecord("bad_media", f"the record has both {given[0]!r} and {given[1]!r}")
    value = record[given[0]]
    return given[0], list(value) if isinstance(value, list | tuple) else [value]


def content_of(turn: Mapping[str, Any]) -> Any:
    """Return the content of a message."""
    return turn["content"] if "content" in turn else turn.get("value")


def turn_key(record: Mapping[str, Any]) -> str | None:
    """Return the key under which a record has its turns; None if it has none."""
    return next((key for key in TURN_KEYS if record.get(key) is not None), None)


def role_of(turn: Any) -> Any:
    """Return who speaks, in the record's word; None if no name is given."""
    return turn.get("role", turn.get("from")) if isinstance(turn, OBJECT) else None


def medium_of(kind: str, entry: Any) -> Media:
    """Return what an entry or content part of a kind stands for, or raise ``bad_media``."""
    if type(entry) is str:
        return Media(kind, reference_of(entry))
    given = entry if isinstance(entry, OBJECT) else {}
    stated, asked = stated_facts(given, kind, "bad_media"), requests_of(kind, given)
    places = (given.get(key) for key in _OF_LISTS) if given else (entry,)
    frames = next((each for each in places if isinstance(each, list | tuple)), None)
    is_listed = kind == "video" and frames is not None
    is_described = "frame_indices" in stated or {"height", "num_frames", "fps"} <= stated.keys()
    for name in asked.keys() & OF_FRAMES.keys():
        if is_listed or is_described:
            del asked[name]
        else:
            stated.pop(OF_FRAMES[name], None)
    if not is_listed:
        return Media(kind, reference_of(entry), stated, asked)
    refs = [reference_of(frame) for frame in frames or ()]
    if not refs or any(ref is None for ref in refs):
        raise BadRecord("bad_media", "a video has an empty list of frames, or one names nothing")
    if (num := stated.pop("num_frames", len(refs))) != len(refs):
        raise BadRecord("bad_media", f"a video states {num} frames, but lists {len(refs)}")
    of_frames = (requests_of("image", frame) for frame in frames or ())
    return Media(kind, refs, stated, next(filter(None, of_frames), asked))


def requests_of(kind: str, entry: Any) -> dict[str, Any]:
    """Return the options of an entry that ask for another medium than it names."""
    if not isinstance(entry, OBJECT):
        return {}
    inner = next((entry[key] for key in REFERENCE_KEYS if entry.get(key) is not None), None)
    given = {**inner, **entry} if isinstance(inner, OBJECT) else entry
    asked = {name: given[name] for name in _REQUESTS[kind] if given.get(name)}
    if asked.get("detail", "low") != "low":  # the medium as it is
        del asked["detail"]
    return asked


def unsupported_option(kind: str, name: str, value: Any, fact: str, fix: str = "") -> BadRecord:
    """Return why a record is refused that asks for another medium than its file is."""
    text = f"{kind} option {name} is {clip_repr(value)}, but the {kind} {fact}: {fix}remove {name}"
    return BadRecord("unsupported_media_option", f"{text} with a --transform")


def refs_of(media: Media) -> Sequence[Any]:
    """Return what a medium was given as: of a video, it may be all its frames."""
    return media.ref if isinstance(media.ref, list | tuple) else [media.ref]


def stated_facts(entry: Mapping[str, Any], kind: str, reason: str) -> dict[str, Any]:
    """Return what an object states of its medium (`Media.stated`), or raise `reason`; sizes count
    only in pairs."""
    facts: dict[str, Any] = {}
    for name in _META[kind]:
        if (value := entry.get(name)) is not None and name in _RANGES:
            facts[name] = check_integer(value, *_RANGES[name], name, reason)
    if ("height" in facts) != ("width" in facts):
        del facts["height" if "height" in facts else "width"]
    if kind == "video":
        for name in () if "num_frames" in facts else ("total_frames", "nframes"):
            if (value := entry.get(name)) is not None:
                facts["num_frames"] = check_integer(value, *_RANGES["num_frames"], name, reason)
        if (rate := rate_of(entry, reason)) is not None:
            facts["fps"] = rate
        if (numbers := entry.get("frame_indices")) is not None:
            if not isinstance(numbers, list | tuple) or not numbers or None in numbers:
                text = f"frame_indices is {clip_repr(numbers)}, not numbers, none null"
                raise BadRecord(reason, text)
            limits = 0, 2**31 - 1, "a number in frame_indices", reason
            facts["frame_indices"] = tuple(check_integer(number, *limits) for number in numbers)
    return facts


def rate_of(entry: Mapping[str, Any], reason: str) -> float | None:
    """Frames per second, or None if not stated; a BadRecord (`reason`) if not a positive number."""
    value = entry.get("fps", entry.get("sample_fps"))
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise BadRecord(reason, f"fps is {clip_repr(value)}, not a positive number")
    return float(value)


_META = {  # a list's entries in order, as far as it has them
    "image": ("height", "width", "n_tokens"),
    "video": ("num_frames", "height", "width", "fps", "duration", "n_tokens"),
    "audio": ("num_samples", "sampling_rate", "n_tokens"),
}


def state_facts(meta: Any, media: Sequence[Media]) -> None:
    """Add what ``mm_inputs_meta`` states of a record's media, and they do not know better
    themselves, or raise ``bad_meta``; counted tokens are always taken."""
    if not isinstance(meta, OBJECT):
        raise BadRecord("bad_meta", f"'mm_inputs_meta' is {name_type(meta)}, not an object")
    for kind in LIST_KEYS:
        entries = meta.get(f"{kind}s_meta")
        if not isinstance(entries, list | tuple | None):
            raise BadRecord("bad_meta", f"'{kind}s_meta' is {name_type(entries)}, not a list")
        own = [medium for medium in media if medium.kind == kind]
        if entries is not None and len(entries) != len(own):
            has = f"{len(entries)} entries, the record {len(own)}"
            raise BadRecord("bad_meta", f"'{kind}s_meta' has {has}")
        for medium, entry in zip(own, entries or (), strict=False):
            facts = _read_meta(entry, kind)
            counted = {"n_tokens": facts["n_tokens"]} if "n_tokens" in facts else {}
            medium.stated = facts | medium.stated | counted
            if isinstance(medium.ref, list):  # which says it
                medium.stated.pop("num_frames", None)


def _read_meta(entry: Any, kind: str) -> dict[str, Any]:
    is_pair = isinstance(entry, list | tuple) and len(entry) == 2  # a video's may be its size alone
    names = _META["image" if is_pair and kind == "video" else kind]
    if isinstance(entry, list | tuple) and len(names) - len(entry) in (0, 1):
        entry = dict(zip(names, entry, strict=False))
    if entry is None:
        return {}
    if not isinstance(entry, OBJECT):
        text = f"an entry of '{kind}s_meta' is {clip_repr(entry)}, not [{', '.join(_META[kind])}]"
        raise BadRecord("bad_meta", text)
    if kind != "video":
        return stated_facts(entry, kind, "bad_meta")
    whole = {n: int(v) if type(v) is float and v.is_integer() else v for n, v in entry.items()}
    unknown = ("num_frames", "nframes", "total_frames", "fps")  # where they are 0
    stated = {n: v for n, v in whole.items() if v != 0 or n not in unknown}
    facts, seconds = stated_facts(stated, "video", "bad_meta"), entry.get("duration")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < math.inf):
        raise BadRecord("bad_meta", f"a video's duration is {clip_repr(seconds)}, not seconds")
    if seconds and "fps" in facts:
        facts.setdefault("num_frames", max(1, int(seconds * facts["fps"])))
    return facts


_SIZED = frozenset((str, list, tuple, dict, bytes, type(None)))


def is_empty(value: Any) -> bool:
    """Return True for null and for text, bytes, lists and objects without content."""
    return type(value) in _SIZED and not value


def check_integer(value: Any, low: int, high: int, name: str, reason: str) -> int | None:
    """`value`; None if it is not stated, a BadRecord (`reason`) if it is no such integer."""
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise BadRecord(reason, f"{name} is {clip_repr(value)}, no integer from {low} to {high}")
    return value


def refuse_rounded(value: Any, name: str) -> None:
    """Raise ``bad_json`` if a value holds a number of over 64 bits, which is read as a float."""
    if type(value) is float and not -(2.0**63) <= value < 2.0**64 and math.isfinite(value):
        text = f"{name!r} holds {value}, a number of over 64 bits, whose digits are not kept"
        raise BadRecord("bad_json", f"{text}: write it as text")
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            refuse_rounded(item, name)


BASE64 = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR")  # JPEG, PNG, GIF, WebP
"""How images in base64 begin."""
_SHORTEST = 64


def is_base64(text: str) -> bool:
    """Return whether a text is an image in base64, and no name."""
    return len(text) >= _SHORTEST and text.startswith(BASE64) and not _NO_BASE64.search(text)


_NAMES = {
    dict: "an object",
    str: "text",
    bool: "a boolean",
    type(None): "null",
    **dict.fromkeys((list, tuple), "a list"),
    **dict.fromkeys((int, float), "a number"),
}


def name_type(value: Any) -> str:
    """Return what `value` is, in JSON's words."""
    return _NAMES.get(type(value), type(value).__name__)


def text_of(value: Any, name: str) -> str:
    """Return a value that is text; a BadRecord (``bad_turn``) if it is not."""
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {name_type(value)}, not text")
    return value


def clip_repr(value: Any) -> str:
    """`value` in an error's text, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- media and prose in any value ------------------------------------------------------------------

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
    """The extension of a medium whose first 80 bytes these are; None if they tell none."""
    return next((ending for ending, magic in _KNOWN if magic.match(head)), None)


def media_in(value: Any, depth: int = 0) -> str | None:
    """The kind of the first medium in a value, however deep; None if there is none."""
    if isinstance(value, str):
        return _in_text(value, depth)
    if isinstance(value, bytes):
        return _KINDS.get(ending_of(value[:80]) or "")
    if (kind := opened_kind(value)) is not None:
        return kind
    if isinstance(value, OBJECT) and value.keys() == {"bytes", "path"} and value["bytes"]:
        named = [media_in(value[name], depth + 1) for name in ("bytes", "path")]
        return named[0] or named[1] or "image"  # how `datasets` stores a medium
    kinds = (media_in(item, depth + 1) for item in _iter_items(value, depth))
    return next((kind for kind in kinds if kind is not None), None)


def _iter_items(value: Any, depth: int) -> Iterable[Any]:
    if depth < _MAX_DEPTH and isinstance(value, OBJECT):
        return value.values()
    is_list = depth < _MAX_DEPTH and isinstance(value, list | tuple)
    return value if is_list and not NUMBERS.issuperset(map(type, value)) else ()


def _in_text(text: str, depth: int) -> str | None:
    _, dot, ending = text[-_LONGEST - 1 :].rpartition(".")
    is_url = "://" in text[:8] and ("?" in text or "#" in text)
    may_hold = (dot and ending.lower() in _KINDS) or text.startswith(_BEGINNINGS)
    if not (may_hold or is_url or "<img>" in text):
        return None  # as nearly all are
    if (inner := _parse_json(text)) is not None:
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


def _parse_json(text: str) -> Any:
    """The list or object that a text is as JSON; None if it is none."""
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
        inner = _parse_json(value)
        return [value] if inner is None else texts_of(inner, depth + 1)
    return [text for item in _iter_items(value, depth) for text in texts_of(item, depth + 1)]


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
    inside = (content_in(item, depth + 1) for item in _iter_items(value, depth))
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
