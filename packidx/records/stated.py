"""NeMo's ``mm_inputs_meta``: sizes, frames and token counts that a record states of its media.

``images_meta`` has ``[height, width]`` per image, ``videos_meta`` ``[frames, height, width, fps,
seconds]`` per video (NeMo Automodel 0.7, `_estimate_video_tokens`), both null where unknown; either
may be an object instead. Where tokens were counted they are its ``n_tokens``, or the list's last.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Conversation, Media
from packidx.records.references import LIST_KEYS, OBJECT, cut, named, stated_facts

_REASON = "bad_meta"
_IMAGE = ("height", "width", "n_tokens")  # a list's entries in order, as far as it has them
_VIDEO = ("num_frames", "height", "width", "fps", "n_tokens")  # the seconds left out


def with_meta(conversation: Conversation, meta: Any) -> Conversation:
    """`conversation` with what `meta` states of its media.

    Raises:
        BadRecord: ``bad_meta``.
    """
    if not isinstance(meta, OBJECT):
        raise BadRecord(_REASON, f"'mm_inputs_meta' is {named(meta)}, not an object")
    stated = {kind: _entries(meta.get(f"{kind}s_meta"), kind, conversation) for kind in LIST_KEYS}

    def completed(part: str | Media) -> str | Media:
        if isinstance(part, str) or part.kind not in stated:
            return part
        return _merged(part, next(stated[part.kind]))

    turns = tuple(
        dataclasses.replace(turn, parts=tuple(map(completed, turn.parts)))
        for turn in conversation.turns
    )
    return dataclasses.replace(conversation, turns=turns)


def _merged(medium: Media, facts: dict[str, Any]) -> Media:
    """`facts` where the medium itself does not know better; counted tokens are always taken."""
    known: dict[str, Any] = {
        name: value
        for name, value in facts.items()
        if value is not None and (name == "tokens" or getattr(medium, name) is None)
    }
    return dataclasses.replace(medium, **known) if known else medium


def _entries(entries: Any, kind: str, conversation: Conversation) -> Iterator[dict[str, Any]]:
    count = sum(medium.kind == kind for medium in conversation.media)
    if entries is None:
        entries = [None] * count
    if not isinstance(entries, list | tuple):
        raise BadRecord(_REASON, f"'{kind}s_meta' is {named(entries)}, not a list")
    if len(entries) != count:
        text = f"'{kind}s_meta' has {len(entries)} entries but the record has {count} {kind}(s)"
        raise BadRecord(_REASON, text)
    return iter([_entry(entry, kind) for entry in entries])


def _entry(entry: Any, kind: str) -> dict[str, Any]:
    if entry is None:
        return {}
    if isinstance(entry, OBJECT):
        if kind != "video":
            return stated_facts(entry, kind, _REASON)
        return _video(entry, entry.get("duration"))
    length = len(entry) if isinstance(entry, list | tuple) else 0
    if length == 2 or (length == 3 and kind == "image"):
        return stated_facts(dict(zip(_IMAGE, entry, strict=False)), kind, _REASON)
    if length in (5, 6) and kind == "video":
        return _video(dict(zip(_VIDEO, [*entry[:4], *entry[5:]], strict=False)), entry[4])
    form = "[height, width]" if kind == "image" else "[frames, height, width, fps, seconds]"
    raise BadRecord(_REASON, f"an entry of '{kind}s_meta' is {cut(entry)}, not {form}")


def _video(entry: Any, seconds: Any) -> dict[str, Any]:
    """A video's facts; 0 means unknown, and frames then follow from rate and duration."""
    stated = {name: _whole(value) for name, value in entry.items()}
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
