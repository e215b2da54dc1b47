"""What a record refers to: entries of its media lists and parts of its content, of any form."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

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
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
REFERENCE_KEYS = (
    *("bytes", "base64", "image", "video", "audio", "image_url", "video_url", "audio_url"),
    *("input_audio", "data", "path", "url"),
)
"""Keys under which an object names a medium, the first of which is taken."""
_BASE64_KEYS = ("bytes", "base64", "data")
_OF_LISTS = ("frames", "video", "path")  # of an object that lists a video's frames
OF_FRAMES = ("fps", "sample_fps", "nframes")
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
_MAX_PIXELS_PER_SIDE = 10_000_000  # far over any image; keeps products of sides within int64
_MAX_FRAMES = 2**31 - 1
_MAX_SAMPLES, _MAX_RATE = 2**40, 10_000_000
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
    """The path, URL, bytes or opened medium an entry of a media list or content part names.

    Raises:
        BadRecord: ``bad_media``, the entry is of no known form.
    """
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
            except (binascii.Error, ValueError):
                raise BadRecord("bad_media", "a media entry's text is not base64") from None
    elif not isinstance(value, bytes | Extent) and opened_kind(value) is None:
        raise BadRecord("bad_media", f"a media reference is {named(value)}, not a path or image")
    return value


def media_entries(record: Mapping[str, Any], kind: str) -> tuple[str | None, list[Any]]:
    """The key and the entries of the record's own list of images, videos or sounds.

    Raises:
        BadRecord: ``bad_media``, both ``image`` and ``images`` are given.
    """
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
    """Return under which key a record has its turns; None where it has none."""
    return next((key for key in TURN_KEYS if record.get(key) is not None), None)


def role_of(turn: Any) -> Any:
    """Return who speaks, in the record's word; None where nobody is named."""
    return turn.get("role", turn.get("from")) if isinstance(turn, OBJECT) else None


def medium_of(kind: str, entry: Any) -> Media:
    """Return what an entry or content part of a kind stands for.

    Raises:
        BadRecord: ``bad_media``.
    """
    if type(entry) is str:
        return Media(kind, reference_of(entry))
    given = entry if isinstance(entry, OBJECT) else {}
    facts, asked = stated_facts(given, kind, "bad_media"), requests_of(kind, given) or {}
    places = (given.get(key) for key in _OF_LISTS) if given else (entry,)
    lists = (each for each in places if isinstance(each, list | tuple))
    if kind == "video" and (frames := next(lists, None)) is not None:  # all that there are
        if not frames:
            raise BadRecord("bad_media", "a video has an empty list of frames")
        refs = [reference_of(frame) for frame in frames]
        if any(ref is None for ref in refs):
            raise BadRecord("bad_media", "a frame of a video names nothing")
        if facts.get("num_frames") not in (None, len(refs)):
            text = f"a video is stated to have {facts['num_frames']} frames, but lists {len(refs)}"
            raise BadRecord("bad_media", text)
        asked = {name: value for name, value in asked.items() if name not in OF_FRAMES}
        asked = next(filter(None, (requests_of("image", frame) for frame in frames)), asked)
        facts["num_frames"] = len(refs)
        return Media(kind, refs, **facts, requests=asked or None)
    ref = reference_of(entry)
    if opened_kind(ref) == "image":
        facts = dict(zip(("width", "height"), map(int, ref.size), strict=True))
    elif not asked.keys().isdisjoint(OF_FRAMES):
        if facts["frame_indices"] or (facts.get("height") and facts["num_frames"] and facts["fps"]):
            asked = {name: value for name, value in asked.items() if name not in OF_FRAMES}
        else:
            facts |= {"fps": None} | ({"num_frames": None} if "nframes" in asked else {})
    return Media(kind, ref, **facts, requests=asked or None)


def requests_of(kind: str, entry: Any) -> dict[str, Any] | None:
    """Return the options of an entry that ask for another medium than it names, or None."""
    if not isinstance(entry, OBJECT):
        return None
    inner = next((entry[key] for key in REFERENCE_KEYS if entry.get(key) is not None), None)
    given = {**inner, **entry} if isinstance(inner, OBJECT) else entry
    asked = {name: given[name] for name in _REQUESTS[kind] if given.get(name)}
    if asked.get("detail", "low") != "low":  # the medium as it is
        del asked["detail"]
    return asked or None


def unsupported_option(kind: str, name: str, value: Any, fact: str, fix: str = "") -> BadRecord:
    """Return why a record is refused that asks for another medium than its file is."""
    text = f"{kind} option {name} is {cut(value)}, but the {kind} {fact}: {fix}remove {name}"
    return BadRecord("unsupported_media_option", f"{text} with a --transform")


def refs_of(media: Media) -> Sequence[Any]:
    """Return what a medium was given as: of a video, it may be all its frames."""
    return media.ref if isinstance(media.ref, list | tuple) else [media.ref]


def stated_facts(entry: Mapping[str, Any], kind: str, reason: str) -> dict[str, Any]:
    """Return what an object states of its medium, as members of `Media`; sizes count only in pairs.

    Raises:
        BadRecord: `reason`, a value makes no sense.
    """
    height = integer(entry.get("height"), 1, _MAX_PIXELS_PER_SIDE, "height", reason)
    width = integer(entry.get("width"), 1, _MAX_PIXELS_PER_SIDE, "width", reason)
    tokens = integer(entry.get("n_tokens"), 0, MAX_TOKENS, "n_tokens", reason)
    facts: dict[str, Any] = {"tokens": tokens}
    if height is not None and width is not None:
        facts.update(height=height, width=width)
    if kind == "video":
        keys = (
            key for key in ("num_frames", "nframes", "total_frames") if entry.get(key) is not None
        )
        if (key := next(keys, None)) is not None:
            facts["num_frames"] = integer(entry[key], 1, _MAX_FRAMES, key, reason)
        facts["fps"], value = rate_of(entry, reason), entry.get("frame_indices")
        if value is not None:
            if not isinstance(value, list | tuple) or not value or None in value:
                text = f"frame_indices is {cut(value)}, not a list of frame numbers, none null"
                raise BadRecord(reason, text)
            name = "a number in frame_indices"
            value = tuple(integer(number, 0, _MAX_FRAMES, name, reason) for number in value)
        facts["frame_indices"] = value
    if kind == "audio":
        for key, most in (("num_samples", _MAX_SAMPLES), ("sampling_rate", _MAX_RATE)):
            facts[key] = integer(entry.get(key), 1, most, key, reason)
    return facts


def rate_of(entry: Mapping[str, Any], reason: str) -> float | None:
    """Frames per second, or None where not stated.

    Raises:
        BadRecord: `reason`, not a positive number.
    """
    value = entry.get("fps", entry.get("sample_fps"))
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise BadRecord(reason, f"fps is {cut(value)}, not a positive number")
    return float(value)


_META = {  # a list's entries in order, as far as it has them
    "image": ("height", "width", "n_tokens"),
    "video": ("num_frames", "height", "width", "fps", "duration", "n_tokens"),
    "audio": ("num_samples", "sampling_rate", "n_tokens"),
}
_COUNTS = ("num_frames", "nframes", "total_frames", "fps")
_META_FORMS = {
    "image": "[height, width]",
    "video": "[frames, height, width, fps, seconds]",
    "audio": "[samples, samples per second]",
}


def state_facts(meta: Any, media: Sequence[Media]) -> None:
    """Add what ``mm_inputs_meta`` states of a record's media, and they do not know better
    themselves; counted tokens are always taken.

    Raises:
        BadRecord: ``bad_meta``, it is of no known form, or is not of as many media.
    """
    if not isinstance(meta, OBJECT):
        raise BadRecord("bad_meta", f"'mm_inputs_meta' is {named(meta)}, not an object")
    for kind in LIST_KEYS:
        entries = meta.get(f"{kind}s_meta")
        if not isinstance(entries, list | tuple | None):
            raise BadRecord("bad_meta", f"'{kind}s_meta' is {named(entries)}, not a list")
        own = [medium for medium in media if medium.kind == kind]
        if entries is not None and len(entries) != len(own):
            has = f"{len(entries)} entries but the record has {len(own)} {kind}(s)"
            raise BadRecord("bad_meta", f"'{kind}s_meta' has {has}")
        for medium, entry in zip(own, entries or (), strict=False):
            for name, fact in _entry(entry, kind).items():
                if fact is not None and (name == "tokens" or getattr(medium, name) is None):
                    setattr(medium, name, fact)


def _entry(entry: Any, kind: str) -> dict[str, Any]:
    is_pair = isinstance(entry, list | tuple) and len(entry) == 2  # a video's may be its size alone
    names = _META["image" if is_pair and kind == "video" else kind]
    if isinstance(entry, list | tuple) and len(names) - len(entry) in (0, 1):
        entry = dict(zip(names, entry, strict=False))
    if entry is None:
        return {}
    if not isinstance(entry, OBJECT):
        text = f"an entry of '{kind}s_meta' is {cut(entry)}, not {_META_FORMS[kind]}"
        raise BadRecord("bad_meta", text)
    if kind != "video":
        return stated_facts(entry, kind, "bad_meta")
    stated, seconds = dict(entry), entry.get("duration")
    for name, value in entry.items():
        if type(value) is float and value.is_integer():
            stated[name] = int(value)
        if name in _COUNTS and value == 0:
            stated[name] = None  # unknown: frames then follow from rate and duration
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < math.inf):
        raise BadRecord(
            "bad_meta", f"a video's duration is {cut(seconds)}, not a number of seconds"
        )
    facts = stated_facts(stated, "video", "bad_meta")
    if facts.get("num_frames") is None and facts["fps"] and seconds:
        facts["num_frames"] = max(1, int(seconds * facts["fps"]))
    return facts


_SIZED = frozenset((str, list, tuple, dict, bytes, type(None)))


def is_empty(value: Any) -> bool:
    """Return True for null and for text, bytes, lists and objects without content."""
    return type(value) in _SIZED and not value


def integer(value: Any, low: int, high: int, name: str, reason: str) -> int | None:
    """`value`, checked; None where it is not stated.

    Raises:
        BadRecord: `reason`, it is not an integer, or out of range.
    """
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise BadRecord(reason, f"{name} is {cut(value)}, not an integer from {low} to {high}")
    return value


def refuse_rounded(value: Any, name: str) -> None:
    """Nothing, for a value whose numbers are those of its file.

    Raises:
        BadRecord: ``bad_json``, it holds a number of over 64 bits, which is read as a float.
    """
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
    list: "a list",
    tuple: "a list",
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def named(value: Any) -> str:
    """Return what `value` is, in JSON's words."""
    return _NAMES.get(type(value), type(value).__name__)


def text_of(value: Any, name: str) -> str:
    """Return a value that is text.

    Raises:
        BadRecord: ``bad_turn``, it is not.
    """
    if not isinstance(value, str):
        raise BadRecord("bad_turn", f"{name!r} is {named(value)}, not text")
    return value


def cut(value: Any) -> str:
    """`value` in an error's text, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
