"""The media of a record: where they lead, their sizes, and the record with them opened."""

from __future__ import annotations

import functools
import hashlib
import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from PIL import Image

from packidx.errors import BadRecord
from packidx.io import storage, urls
from packidx.io.identity import Identity, identity_of, lasting_identity
from packidx.io.ranges import Extent
from packidx.io.storage import reading
from packidx.records.conversation import Media
from packidx.records.layout import TURN_KEYS
from packidx.records.media.audio import Audio
from packidx.records.media.images import (
    MAX_PIXELS,
    image_size,
    open_image,
    read_image,
    stored_value,
)
from packidx.records.media.lmdb_store import (
    SEPARATOR,
    data_file,
    forget_databases,
    split_reference,
)
from packidx.records.media.paths import MediaRoot, data_uri, forget_paths, resolve, shortened
from packidx.records.media.references import (
    LIST_KEYS,
    frames_of,
    media_entries,
    part_kind,
    reference_of,
    refs_of,
)
from packidx.records.media.video import Video, forget_infos, remembered

Moved = Callable[[str], str]

_REPLACED_KEYS = (
    *("image_url", "video_url", "audio_url", "input_audio", "url", "path", "bytes", "base64"),
    "data",
)


def media_size(media: Media, root: MediaRoot) -> tuple[int, int] | None:
    """(height, width) of one medium: stated, else from its image's header; None for any other.

    Answers about paths are remembered until `forget_media`.

    Raises:
        BadRecord: as `resolve` and `image_size`; ``bad_media`` where there is nothing to look at.
    """
    if media.height is not None and media.width is not None:
        if media.kind == "image" and media.height * media.width > MAX_PIXELS:
            size = f"{media.height} x {media.width}"
            raise BadRecord("media_too_large", f"an image is stated to have {size} pixels")
        check_reference(media, root)
        return media.height, media.width
    if media.kind != "image":
        for ref in refs_of(media):
            _check_exists(ref, root)
        return None
    if isinstance(media.ref, bytes | Extent):
        return image_size(media.ref)
    if not isinstance(media.ref, str):
        raise BadRecord("bad_media", "an image without a path, bytes or stated size")
    if media.ref.startswith("data:"):
        return image_size(data_uri(media.ref), "a data: URI")
    return remembered(image_size, media.ref, root)


def check_reference(media: Media, root: MediaRoot) -> None:
    """Refuse a reference that the reader will refuse, without looking at the file.

    Raises:
        BadRecord: as `resolve`.
    """
    for ref in refs_of(media):
        if isinstance(ref, str) and not ref.startswith("data:"):
            resolve(ref, root)


def forget_media() -> None:
    """Forget what is remembered of media by their paths: files may have changed since."""
    _exists.cache_clear()
    forget_paths()
    forget_infos()
    forget_databases()
    _identity.cache_clear()


def is_remote(media: Media, root: MediaRoot) -> bool:
    """Return whether to know a medium's size may take a request to an object store."""
    below = urls.is_url(root.folder)
    return any(isinstance(ref, str) and (below or "://" in ref) for ref in refs_of(media))


def open_media(
    record: Mapping[str, Any],
    root: MediaRoot,
    moved: Moved = str,
    looked_at: LookedAt | None = None,
) -> dict[str, Any]:
    """A shallow copy of a raw record in which every image is opened and upright.

    The record keeps its dialect: entries of its own image list become PIL images, and content
    parts that name an image become ``{"type": "image", "image": <PIL image>}``. Videos given as
    lists of frames become lists of PIL images, any other a `Video`; sounds become `Audio`s.
    `dialects.parse` accepts the result.

    Args:
        moved: old absolute path -> where it is now.
        looked_at: is told of every reference before it is followed.

    Raises:
        BadRecord: as `resolve` and `open_image`, or the record is no object.
    """
    if not isinstance(record, Mapping):
        raise BadRecord("bad_record", "the record is not an object")
    looker = _Looker(root, moved, looked_at)
    looker.opened(record)
    fetched = dict(storage.overlapped(looker.fetch, looker.urls))
    return MediaOpener(root, moved, fetched).opened(record)


class MediaOpener:
    """Opens the media of one record; a subclass may put something else in their places."""

    def __init__(
        self, root: MediaRoot, moved: Moved, fetched: Mapping[str, bytes | BadRecord] | None = None
    ) -> None:
        self._root, self._moved = root, moved
        self._fetched = fetched or {}

    def opened(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A shallow copy of a record with its media opened, in its own dialect."""
        opened = dict(record)
        for kind in LIST_KEYS:
            key, entries = media_entries(record, kind)
            if key is not None:
                media = [self.entry(kind, entry) for entry in entries]
                opened[key] = media if isinstance(record[key], list | tuple) else media[0]
        for key in TURN_KEYS:
            if isinstance(record.get(key), list | tuple):
                opened[key] = [self.turn(turn) for turn in record[key]]
        return opened

    def turn(self, turn: Any) -> Any:
        content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
        if not isinstance(content, list | tuple):
            return turn
        name = "content" if "content" in turn else "value"
        return {**turn, name: [self._part(part) for part in content]}

    def _part(self, part: Any) -> Any:
        kind = part_kind(part)
        if isinstance(part, str) or kind not in LIST_KEYS:
            return part
        if kind != "image":
            return self.entry(kind, part)
        ref = reference_of(part)
        if ref is None:
            return part
        kept = {key: value for key, value in part.items() if key not in _REPLACED_KEYS}
        return {**kept, "type": "image", "image": self.image(ref)}

    def entry(self, kind: str, entry: Any) -> Any:
        """An entry of a media list, opened: an image always, any other as far as it can be."""
        if kind == "image":
            return self.image(reference_of(entry))
        key, frames = frames_of(entry) if kind == "video" else (None, None)
        if frames is not None:
            images = [self.image(reference_of(frame)) for frame in frames]
            return images if key is None else {**entry, key: images}
        ref = reference_of(entry)
        if ref is None:
            return entry
        opened = self.video(ref) if kind == "video" else self.sound(ref)
        if opened is ref:
            return entry
        if not isinstance(entry, Mapping):
            return opened
        kept = {name: value for name, value in entry.items() if name not in _REPLACED_KEYS}
        if kept.get("type"):
            return {**kept, "type": kind, kind: opened}
        return {**kept, (kind if kind in kept else "path"): opened}

    def image(self, ref: Any) -> Image.Image:
        located = self.located_at(ref)
        content = self._fetched.get(located) if isinstance(located, str) else None
        if isinstance(content, BadRecord):
            raise BadRecord(content.reason, content.detail)
        if content is None:
            return open_image(located)
        return open_image(content, repr(shortened(located)))

    def video(self, ref: Any) -> Any:
        """A `Video`, which decodes when it is asked to; an opened one as it is."""
        return self._opened_later(Video, ref)

    def sound(self, ref: Any) -> Any:
        """An `Audio`, which decodes when it is asked to; an opened one as it is."""
        return self._opened_later(Audio, ref)

    def _opened_later(self, kind: Callable[[Any], Any], ref: Any) -> Any:
        if not isinstance(ref, str | bytes | Extent):
            return ref
        located = self.located_at(ref)
        content = stored_value(located, repr(shortened(str(ref))))
        return kind(located if content is None else content)

    def located_at(self, ref: Any) -> Any:
        """Return where a reference leads, through `moved` if it is absolute; anything else as it
        is."""
        if not isinstance(ref, str):
            return ref
        path = urllib.parse.unquote(ref[7:]) if ref.startswith("file:///") else ref
        if os.path.isabs(path) or urls.is_url(path):
            location, separator, key = path, "", ""
            if (entry := split_reference(path)) is not None:
                (location, key), separator = entry, SEPARATOR
            ref = self._moved(location) + separator + key
        return resolve(ref, self._root)


class _Looker(MediaOpener):
    """Notes what a record refers to, and the URLs of its images, instead of opening them."""

    def __init__(self, root: MediaRoot, moved: Moved, looked_at: LookedAt | None) -> None:
        super().__init__(root, moved)
        self.urls: dict[str, None] = {}
        self._looked_at = looked_at

    def _noted(self, ref: Any) -> Any:
        if self._looked_at is not None:
            self._looked_at.note(ref, self._root)
        return ref

    def image(self, ref: Any) -> Any:
        self._noted(ref)
        located = self.located_at(ref)
        if isinstance(located, str) and urls.is_url(located) and not split_reference(located):
            self.urls[located] = None
        return ref

    video = sound = _noted

    @staticmethod
    def fetch(url: str) -> tuple[str, bytes | BadRecord]:
        """The content, or why there is none."""
        try:
            return url, read_image(url)
        except BadRecord as error:
            return url, error.with_traceback(None)


def _check_exists(ref: Any, root: MediaRoot) -> None:
    if isinstance(ref, str):
        path = resolve(ref, root)
        if isinstance(path, str) and not _exists(path):
            raise BadRecord("missing_media", f"{shortened(ref)!r} does not exist")


@functools.lru_cache(maxsize=1 << 16)
def _exists(path: str) -> bool:
    entry = split_reference(path)
    with reading(path):
        return storage.is_file(path) if entry is None else storage.exists(entry[0])


# -- what records refer to ------------------------------------------------------------------------

_ABSENT = b"-"


def _digest(identities: Iterable[bytes | None]) -> str | None:
    known: list[bytes] = []
    for identity in identities:
        if identity is None:
            return None
        known.append(identity)
    return hashlib.sha256(b"".join(known)).hexdigest()


class References(NamedTuple):
    """What the records of a range refer to."""

    names: list[str]
    """The references as they stand in records, sorted."""
    digest: str | None
    """Of the identities of their files; None where nothing tells whether these change."""

    def are_unchanged(self, root: MediaRoot) -> bool:
        """Return whether they lead from `root` to the very files that they led to."""
        if self.digest is None:
            return False
        return self.digest == _digest(_identity(name, root, identity_of) for name in self.names)


NOTHING = References([], _digest([]))


class LookedAt:
    """Collects the references of a range's records, each before its file is read."""

    def __init__(self) -> None:
        self._files: dict[str, bytes | None] = {}

    def note(self, ref: Any, root: MediaRoot) -> None:
        """Note what a record refers to; content that stands in its shard is known by the shard."""
        if isinstance(ref, str):
            if ref not in self._files and not ref.startswith("data:"):
                self._files[ref] = _identity(ref, root, lasting_identity)
        elif ref is not None and not isinstance(ref, bytes | Extent):
            self._files[""] = None  # a transform has opened it: who knows where it was

    def references(self) -> References:
        """Return what was noted."""
        names = sorted(self._files)
        return References(names, _digest(self._files[name] for name in names))


@functools.lru_cache(maxsize=1 << 16)
def _identity(
    ref: str, root: MediaRoot, identify: Callable[[str], Identity | None]
) -> bytes | None:
    """Return the identity of a reference's file; None where it may change unseen."""
    try:
        path = resolve(ref, root)
        if isinstance(path, bytes):
            return b""
        if (entry := split_reference(path)) is not None:
            path = data_file(entry[0])
        if urls.is_url(path):
            return None  # to ask for its version costs as much as to count it again
        identity = identify(path)
    except BadRecord:
        return None
    except (OSError, ValueError):
        return _ABSENT
    return None if identity is None else b"%d %d %d %d %d;" % identity
