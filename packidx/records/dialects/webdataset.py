"""A WebDataset sample's files in its record: names become content, and media not named are found.

A name is a member's full name or its extension, what follows ``KEY.``. What is neither stays as it
is, and leads into a stated media root alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packidx.io.ranges import Extent
from packidx.records.containers.tar import MEMBERS, Members
from packidx.records.media.held import kind_of_name
from packidx.records.media.references import (
    LIST_KEYS,
    TURN_KEYS,
    content_of,
    frames_of,
    map_media,
    media_entries,
    part_kind,
    reference_of,
    role_of,
)

_KEYS = frozenset(
    ("image", "video", "audio", "image_url", "video_url", "audio_url", "path", "url", "frames")
)
_MAX_DEPTH = 4  # an entry, a place in it, a list of frames, a place in one of these

Find = Callable[[str], bytes | Extent | None]


def with_members(record: dict[str, Any], stated: frozenset[str] | None = None) -> dict[str, Any]:
    """`record`, in the standard names, with its sample's media where it names them: as bytes, or
    as `Extent`s of the tar.

    Where it names no medium at all, its sample's images, videos and sounds are its media, in the
    tar's order; and if no placeholder of a kind is in its texts, they stand before its first user
    turn.

    Args:
        stated: the kinds of media that it says it has; if it says none, files beside it are none.

    Raises:
        BadRecord: ``bad_media``, both ``image`` and ``images`` are given.
    """
    sample = record.get(MEMBERS)
    located = {name: value for name, value in record.items() if name != MEMBERS}
    if not isinstance(sample, Members):
        return located
    find = _finder(sample)
    named = False

    def place(_: str, entry: Any, is_part: bool) -> Any:
        nonlocal named
        named = named or not is_part or frames_of(entry)[1] is not None
        named = named or reference_of(entry) is not None
        return _located(entry, find)

    located = map_media(located, place)
    return located if named or stated == frozenset() else _inferred(located, sample)


def media_first(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with the media of each kind that no turn has a placeholder for before its first user
    turn; itself where there are none."""
    key = next((key for key in TURN_KEYS if isinstance(record.get(key), list)), None)
    turns = record[key] if key is not None else []
    front: list[str] = []
    for kind in reversed(LIST_KEYS):
        if not any(has_placeholder(turn, kind) for turn in turns):
            front = [kind] * len(media_entries(record, kind)[1]) + front
    at = next((n for n, turn in enumerate(turns) if role_of(turn) in ("user", "human")), None)
    if not front or key is None or at is None:
        return record
    changed = _preceded(turns[at], front)
    return {**record, key: [*turns[:at], changed, *turns[at + 1 :]]}


def has_placeholder(turn: Any, kind: str) -> bool:
    """Return whether a turn has a place for a medium of a kind."""
    content = content_of(turn)[1]
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str) and f"<{kind}>" in text:
            return True
        if part_kind(part) == kind:
            return True
    return False


def _finder(sample: Members) -> Find:
    extensions = {name[len(sample.key) + 1 :].lower(): name for name in sample.files}

    def find(name: str) -> bytes | Extent | None:
        content = sample.files.get(name)
        if content is None and (full := extensions.get(name.lower())) is not None:
            content = sample.files[full]
        return content

    return find


def _located(entry: Any, find: Find, depth: int = 0) -> Any:
    if isinstance(entry, str):
        content = find(entry)
        return entry if content is None else content
    if depth == _MAX_DEPTH:
        return entry
    if isinstance(entry, list):
        return [_located(member, find, depth + 1) for member in entry]
    if isinstance(entry, dict):
        return {k: _located(v, find, depth + 1) if k in _KEYS else v for k, v in entry.items()}
    return entry


def _inferred(record: dict[str, Any], sample: Members) -> dict[str, Any]:
    for kind, keys in LIST_KEYS.items():
        files = [data for name, data in sample.files.items() if kind_of_name(name) == kind]
        if files:
            record[keys[0]] = files
            record.pop(keys[1], None)  # empty
    return media_first(record)


def _preceded(turn: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    """A turn with placeholders before what it says."""
    name, content = content_of(turn)
    if isinstance(content, list):
        return {**turn, name: [*({"type": kind} for kind in kinds), *content]}
    front = "".join(f"<{kind}>" for kind in kinds)
    return {**turn, name: front + content} if isinstance(content, str) else turn
