"""The media of a record, handed out to the placeholders in its texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Media
from packidx.records.dialects.standard import may_hold_media
from packidx.records.media.references import (
    LIST_KEYS,
    OBJECT,
    cut,
    media_entries,
    medium_of,
    named,
    stated_facts,
)

UNUSED = "unused_column"
"""Why a record is rejected that holds what nobody reads."""


class MediaLists:
    """The record's own media, handed out to the placeholders in order of appearance, and what it
    states of all its media."""

    def __init__(
        self,
        listed: Mapping[str, list[Any]],
        stated: StatedMedia | None,
        record: Mapping[str, Any] | None,
    ) -> None:
        self._listed, self._stated = listed, stated
        self._used: dict[str, int] = {}
        self._record = record
        self.has_literal = False
        """Whether a text held a placeholder where nothing could be a medium."""

    @cached_property
    def may_be(self) -> bool:
        """Whether a placeholder could stand for something."""
        return self._stated is not None or self._record is None or may_hold_media(self._record)

    def next(self, kind: str) -> Media:
        """The medium that the next placeholder of a kind stands for."""
        number = self._used.get(kind, 0)
        self._used[kind] = number + 1
        listed = self._listed.get(kind, ())
        if number >= len(listed):
            return self.own(Media(kind))  # refused by `check`
        medium = medium_of(kind, listed[number])
        if medium.ref is None:
            raise BadRecord("bad_media", f"an entry of the record's {kind}s names nothing")
        return self.own(medium)

    def own(self, medium: Media) -> Media:
        """The next medium, whoever names it, with what the record states of it."""
        return medium if self._stated is None else self._stated.complete(medium)

    def check(self) -> None:
        """Refuse a record with more or fewer placeholders than media."""
        for kind in {**self._listed, **self._used}:
            used, listed = self._used.get(kind, 0), len(self._listed.get(kind, ()))
            if used != listed:
                text = f"{used} placeholder(s) for {kind}s but {listed} {kind}(s) in the record"
                if not listed:
                    text += f"; where <{kind}> is text, --ignore {kind}s says so"
                raise BadRecord("media_mismatch", text)
        if self._stated is not None:
            self._stated.check()


def media_lists(record: Mapping[str, Any], has_media: bool) -> MediaLists:
    """The media of a record.

    Args:
        has_media: as of `parse`.

    Raises:
        BadRecord: ``bad_media`` or ``bad_meta``.
    """
    meta = record.get("mm_inputs_meta")
    stated = None if meta is None else stated_media(meta)
    listed = {
        kind: media_entries(record, kind)[1]
        for kind, keys in LIST_KEYS.items()
        if not record.keys().isdisjoint(keys)
    }
    return MediaLists(listed, stated, None if has_media else record)


def unread(place: str, kind: str) -> BadRecord:
    """Why a record is refused with a medium in a place where nobody reads one."""
    text = f"{place} holds a medium ({kind}) that nothing reads: name it in the record's own list"
    return BadRecord(UNUSED, f"{text} of {kind}s, with <{kind}> in the text, or use a --transform")


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
