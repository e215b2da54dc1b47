"""The media of a record: what is known of each, and the record with them opened."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packidx.errors import BadRecord
from packidx.io import storage, urls
from packidx.io.ranges import Extent
from packidx.io.storage import reading
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.audio import Audio, audio_info, stated_audio
from packidx.records.media.held import kind_of_name
from packidx.records.media.images import image_info, label_of, open_image, stated_image
from packidx.records.media.lmdb_store import forget_databases
from packidx.records.media.paths import MediaRoot, forget_paths, resolve, shortened
from packidx.records.media.references import (
    LIST_KEYS,
    REFERENCE_KEYS,
    frames_of,
    map_media,
    reference_of,
    refs_of,
    requests_of,
)
from packidx.records.media.video import (
    Video,
    frames_info,
    stated_video,
    video_info,
    with_stated,
)

Moved = Callable[[str], str]
"""Absolute path or URL when it was counted → where it is now."""


@dataclass(frozen=True)
class MediaKind:
    """A kind of medium. Errors name a source by the label beside it."""

    stated: Callable[[Media], MediaInfo | None]
    """What a record states, if no file need be looked at."""
    info: Callable[..., MediaInfo]
    """(source, label) → what its header says."""
    open: Callable[..., Any]
    """(source, label) → the medium, as encoders take it."""


KINDS = {
    "image": MediaKind(stated_image, image_info, open_image),
    "video": MediaKind(stated_video, video_info, Video),
    "audio": MediaKind(stated_audio, audio_info, Audio),
}
_REPLACED_KEYS = frozenset(REFERENCE_KEYS) - LIST_KEYS.keys()
_NUMBER = re.compile(r"\d{1,18}")


def media_info(media: Media, root: MediaRoot) -> MediaInfo:
    """Return what is known of a medium: what the record states, else what its headers say.

    Answers about paths are remembered until `forget_media`.

    Raises:
        BadRecord: as `resolve` and what reads a medium of its kind; ``bad_media`` where there is
            nothing to look at, or where the record asks for a frame that is not there.
        MissingExtraError: PyAV is not installed.
    """
    info = KINDS[media.kind].stated(media)
    if info is None:
        info = _looked_at(media, root)
    else:
        check_reference(media, root)
    return with_stated(info, media) if media.kind == "video" else info


def _looked_at(media: Media, root: MediaRoot) -> MediaInfo:
    ref = media.ref
    if isinstance(ref, Video | Audio):
        return ref.info
    if isinstance(ref, bytes | Extent):
        return KINDS[media.kind].info(ref)
    if isinstance(ref, list | tuple):
        return frames_info([resolve(r, root) if isinstance(r, str) else r for r in ref])
    if not isinstance(ref, str):
        text = f"a medium ({media.kind}) without a path, bytes or all that stands for them"
        raise BadRecord("bad_media", text)
    if ref.startswith("data:"):  # not remembered: it may be large
        return KINDS[media.kind].info(resolve(ref, root), label="a data: URI")
    answer = _answer(media.kind, ref, root)
    if isinstance(answer, BadRecord):
        raise BadRecord(answer.reason, answer.detail)
    return answer


@functools.lru_cache(maxsize=1 << 17)
def _answer(kind: str, ref: str, root: MediaRoot) -> MediaInfo | BadRecord:
    """Return what the header of a file says; that it is refused is remembered, too."""
    try:
        frames = frames_in(ref, root) if kind == "video" else None
        if frames is not None:
            return frames_info([resolve(frame, root) for frame in frames])
        # The reference, not the path, goes into the detail: it is the same on every machine.
        return KINDS[kind].info(resolve(ref, root), label=repr(shortened(ref)))
    except BadRecord as error:
        return error.with_traceback(None)


def frames_in(ref: Any, root: MediaRoot) -> list[str] | None:
    """The frames of a video that is named by a folder of images, by the numbers in their names;
    None of any other.

    Raises:
        BadRecord: as `resolve`.
    """
    path = resolve(ref, root) if isinstance(ref, str) and not ref.startswith("data:") else None
    if not isinstance(path, str) or urls.is_url(path) or not os.path.isdir(path):
        return None
    with reading(path):
        names = [name for name in os.listdir(path) if kind_of_name(name) == "image"]
    stems = sorted({_NUMBER.sub("", os.path.splitext(name)[0]) for name in names})
    if len(stems) > 1:
        text = f"the folder {shortened(ref)!r} holds images of several names, {stems!r:.80}"
        raise BadRecord("bad_media", f"{text}: a video's frames differ in their numbers alone")
    names.sort(key=lambda name: ([int(digits) for digits in _NUMBER.findall(name)], name))
    return [urls.join(ref, name) for name in names]


def check_reference(media: Media, root: MediaRoot, *, exists: bool = False) -> None:
    """Refuse a reference that the reader will refuse, without looking into the file.

    Args:
        exists: refuse one whose file is not there, too.

    Raises:
        BadRecord: as `resolve`; ``missing_media``.
    """
    frames = frames_in(media.ref, root) if exists and media.kind == "video" else None
    for ref in refs_of(media) if frames is None else frames:
        if not isinstance(ref, str) or (media.kind == "image" and ref.startswith("data:")):
            continue
        located = resolve(ref, root)
        if exists and isinstance(located, str) and not _exists(located):
            raise BadRecord("missing_media", f"{shortened(ref)!r} does not exist")


def forget_media() -> None:
    """Forget what is remembered of media by their paths: files may have changed since."""
    _exists.cache_clear()
    forget_paths()
    _answer.cache_clear()
    forget_databases()


def is_remote(media: Media, root: MediaRoot) -> bool:
    """Return whether to know a medium's size may take a request to an object store."""
    below = "://" in root.folder
    return any(isinstance(ref, str) and (below or "://" in ref) for ref in refs_of(media))


def open_media(
    record: Mapping[str, Any],
    root: MediaRoot,
    moved: Moved = str,
) -> dict[str, Any]:
    """A shallow copy of a raw record in which every image is opened and upright.

    The record keeps its dialect: entries of its own image list become PIL images, and content
    parts that name an image, and entries with options (``max_pixels`` …), become
    ``{"type": "image", "image": <PIL image>}`` with these. Videos given as lists of frames become
    lists of PIL images, any other a `Video`; sounds become `Audio`s. `dialects.parse` accepts it.

    Args:
        moved: old absolute path -> where it is now.

    Raises:
        BadRecord: as `resolve` and `open_image`, or the record is not an object.
    """
    if not isinstance(record, Mapping):
        raise BadRecord("bad_record", "the record is not an object")
    return MediaOpener(root, moved).opened(record)


class MediaOpener:
    """Opens the media of one record; a subclass may put something else in their places."""

    def __init__(self, root: MediaRoot, moved: Moved = str) -> None:
        self._root, self._moved = root, moved

    def opened(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A shallow copy of a record with its media opened, in its own dialect."""
        return map_media(record, self.entry)

    def entry(self, kind: str, entry: Any, is_part: bool = False) -> Any:
        """An entry of a media list or a part of a turn, opened: an image always, any other as far
        as it can be."""
        key, frames = frames_of(entry) if kind == "video" else (None, None)
        if frames is not None:
            images = [self.entry("image", frame) for frame in frames]
            return images if key is None else {**entry, key: images}
        ref = reference_of(entry)
        if kind == "video" and (frames := frames_in(self._placed(ref), self._root)) is not None:
            images = [self.medium("image", frame) for frame in frames]
            stated = entry.items() if isinstance(entry, Mapping) else ()
            kept = {name: value for name, value in stated if name not in REFERENCE_KEYS}
            return {**kept, "frames": images}
        if kind == "image" and not is_part and requests_of(kind, entry) is None:
            return self.medium(kind, ref)
        if ref is None:
            return entry
        opened = self.medium(kind, ref)
        if opened is ref and kind != "image":
            return entry
        if not isinstance(entry, Mapping):
            return opened
        kept = {name: value for name, value in entry.items() if name not in _REPLACED_KEYS}
        kept |= requests_of(kind, entry) or {}
        if kind == "image" or kept.get("type"):
            return {**kept, "type": kind, kind: opened}
        return {**kept, (kind if kind in kept else "path"): opened}

    def medium(self, kind: str, ref: Any) -> Any:
        """A medium of a kind; a video or a sound decodes when it is asked to. One that is opened
        stays as it is, an image upright."""
        if kind != "image" and not isinstance(ref, str | bytes | Extent):
            return ref
        return KINDS[kind].open(
            self.located_at(ref), label_of(ref) if isinstance(ref, str) else None
        )

    def located_at(self, ref: Any) -> Any:
        """Return where a reference leads, through `moved` if it is absolute; anything else as it
        is."""
        return resolve(self._placed(ref), self._root) if isinstance(ref, str) else ref

    def _placed(self, ref: Any) -> Any:
        """A reference through `moved`, if it is an absolute one."""
        if not isinstance(ref, str):
            return ref
        path = urls.local_path(ref)
        return self._moved(path) if os.path.isabs(path) or urls.is_url(path) else ref


@functools.lru_cache(maxsize=1 << 16)
def _exists(path: str) -> bool:
    with reading(path):
        return storage.is_file(path)
