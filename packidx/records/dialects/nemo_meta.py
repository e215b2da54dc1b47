"""NeMo's ``mm_inputs_meta``: sizes, frames and token counts that a record states of its media.

``images_meta`` has ``[height, width]`` per image, ``videos_meta`` ``[frames, height, width, fps,
seconds]`` per video (NeMo Automodel 0.7, `_estimate_video_tokens`), ``audios_meta`` ``[samples,
samples per second]`` per sound (ours), null where unknown; an entry may be an object instead. Where
tokens were counted they are its ``n_tokens``, or the list's last.
What cannot be so is a BadRecord, ``bad_meta``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Media
from packidx.records.media.references import LIST_KEYS, OBJECT, cut, named, stated_facts

_REASON = "bad_meta"
_IMAGE = ("height", "width", "n_tokens")  # a list's entries in order, as far as it has them
_AUDIO = ("num_samples", "sampling_rate", "n_tokens")
_VIDEO = ("num_frames", "height", "width", "fps", "n_tokens")  # the seconds left out

_FORMS = {
    "image": "[height, width]",
    "video": "[frames, height, width, fps, seconds]",
    "audio": "[samples, samples per second]",
}


class StatedMedia:
    """What ``mm_inputs_meta`` states, given to a record's media in order of appearance."""

    def __init__(self, entries: Mapping[str, Sequence[Any]]) -> None:
        self._entries = entries
        self._seen: dict[str, int] = {}

    def complete(self, medium: Media) -> Media:
        """The next medium, with what is stated of it where it does not know better itself; counted
        tokens are always taken."""
        kind = medium.kind
        number = self._seen.get(kind, 0)
        self._seen[kind] = number + 1
        entries = self._entries.get(kind)
        if entries is None or number >= len(entries):
            return medium
        facts = _entry(entries[number], kind)
        taken = {
            name: fact
            for name, fact in facts.items()
            if fact is not None and (name == "tokens" or getattr(medium, name) is None)
        }
        return replace(medium, **taken)

    def check(self) -> None:
        """Refuse what is stated of more or fewer media than there were."""
        for kind, entries in self._entries.items():
            seen = self._seen.get(kind, 0)
            if len(entries) != seen:
                has = f"{len(entries)} entries but the record has {seen} {kind}(s)"
                raise BadRecord(_REASON, f"'{kind}s_meta' has {has}")


def stated_media(meta: Any) -> StatedMedia:
    """What the value of ``mm_inputs_meta`` states."""
    if not isinstance(meta, OBJECT):
        raise BadRecord(_REASON, f"'mm_inputs_meta' is {named(meta)}, not an object")
    lists = {kind: meta.get(f"{kind}s_meta") for kind in LIST_KEYS}
    for kind, entries in lists.items():
        if entries is not None and not isinstance(entries, list | tuple):
            raise BadRecord(_REASON, f"'{kind}s_meta' is {named(entries)}, not a list")
    return StatedMedia({kind: entries for kind, entries in lists.items() if entries is not None})


def _entry(entry: Any, kind: str) -> dict[str, Any]:
    if entry is None:
        return {}
    if isinstance(entry, OBJECT):
        if kind != "video":
            return stated_facts(entry, kind, _REASON)
        return _video(entry, entry.get("duration"))
    length = len(entry) if isinstance(entry, list | tuple) else 0
    if length == 2 or (length == 3 and kind != "video"):
        names = _AUDIO if kind == "audio" else _IMAGE
        return stated_facts(dict(zip(names, entry, strict=False)), kind, _REASON)
    if length in (5, 6) and kind == "video":
        return _video(dict(zip(_VIDEO, [*entry[:4], *entry[5:]], strict=False)), entry[4])
    raise BadRecord(_REASON, f"an entry of '{kind}s_meta' is {cut(entry)}, not {_FORMS[kind]}")


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
