"""The media of a record, handed out to the placeholders in its texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from packidx.errors import BadRecord
from packidx.records.conversation import Media
from packidx.records.dialects.columns import may_hold_media
from packidx.records.dialects.nemo_meta import StatedMedia, stated_media
from packidx.records.media.references import LIST_KEYS, media_entries, medium_of

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
