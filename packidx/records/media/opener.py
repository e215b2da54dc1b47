"""Look into media without decoding them, and open them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from packidx.errors import BadRecord
from packidx.io import storage, urls
from packidx.io.ranges import Extent
from packidx.io.storage import raise_unreadable
from packidx.records.conversation import Conversation, Media, MediaInfo, map_media
from packidx.records.media.clips import (
    SHOWN,
    Audio,
    Video,
    audio_info,
    frames_info,
    video_info,
    with_stated,
)
from packidx.records.media.images import MAX_PIXELS, image_info, label_of, open_image
from packidx.records.media.paths import (
    MediaRoot,
    clip_text,
    forget_databases,
    forget_paths,
    resolve_reference,
)
from packidx.records.media.references import kind_of_name, opened_kind, refs_of

Moved = Callable[[str], str]
"""Absolute path or URL when it was counted → where it is now."""


class MediaKind(NamedTuple):
    """A kind of medium. Errors name a source by the label beside it."""

    info: Callable[..., MediaInfo]
    """(source, label) → what its header says."""
    open: Callable[..., Any]
    """(source, label) → the medium, as encoders take it."""


KINDS = {
    "image": MediaKind(image_info, open_image),
    "video": MediaKind(video_info, Video),
    "audio": MediaKind(audio_info, Audio),
}
_NUMBER = re.compile(r"\d{1,18}")


def media_info(media: Media, root: MediaRoot) -> MediaInfo:
    """Return what is known of a medium: what the record states, else what its headers say.

    Answers about paths are remembered until `forget_media`.

    Raises:
        BadRecord: as `resolve_reference` and what reads its kind; ``bad_media`` if there
            is nothing to look at, or if the record asks for a frame that is not there.
        MissingExtraError: PyAV is not installed.
    """
    ref, kind, stated = media.ref, media.kind, media.stated
    is_list = isinstance(ref, list | tuple)
    shown = SHOWN["image" if is_list else kind]
    if opened_kind(ref) == "image":
        info = MediaInfo(ref.height, ref.width)
    elif isinstance(ref, Video):
        info, stated = ref.info, {**stated, **ref.stated}
    elif shown <= stated.keys():
        if stated.get("height", 0) * stated.get("width", 0) > MAX_PIXELS:
            size = f"{stated['height']} x {stated['width']}"
            raise BadRecord("media_too_large", f"{kind} is stated to have {size} pixels")
        check_reference(media, root)
        info = MediaInfo(**{name: stated[name] for name in shown}, extracted=is_list)
        info = replace(info, num_frames=len(ref)) if is_list else info
    elif isinstance(ref, Audio):
        info = ref.info
    elif isinstance(ref, bytes | Extent):
        info = KINDS[kind].info(ref)
    elif is_list:
        info = frames_info([resolve_reference(r, root) if isinstance(r, str) else r for r in ref])
    elif not isinstance(ref, str):
        raise BadRecord("bad_media", f"a medium ({kind}) without a path, bytes or stated facts")
    elif ref.startswith("data:"):  # not remembered: it may be large
        info = KINDS[kind].info(resolve_reference(ref, root), label="a data: URI")
    elif isinstance(answer := _read_info(kind, ref, root), BadRecord):
        raise BadRecord(answer.reason, answer.detail)
    else:
        info = answer
    return with_stated(info, stated, media.requests) if kind == "video" else info


@functools.lru_cache(maxsize=1 << 17)
def _read_info(kind: str, ref: str, root: MediaRoot) -> MediaInfo | BadRecord:
    """Return what the header of a file says; that it is refused is remembered, too."""
    try:
        frames = frames_in(ref, root) if kind == "video" else None
        if frames is not None:
            return frames_info([resolve_reference(frame, root) for frame in frames])
        # The reference, not the path, goes into the detail: it is the same on every machine.
        return KINDS[kind].info(resolve_reference(ref, root), label=repr(clip_text(ref)))
    except BadRecord as error:
        return error.with_traceback(None)


def frames_in(ref: Any, root: MediaRoot) -> list[str] | None:
    """The frames of a video that is named by a folder of images, by the numbers in their names;
    None of any other. Raise what `resolve_reference` raises."""
    path = resolve_reference(ref, root) if isinstance(ref, str) and ref[:5] != "data:" else None
    if not isinstance(path, str) or urls.is_url(path) or not os.path.isdir(path):
        return None
    with raise_unreadable(path):
        names = [name for name in os.listdir(path) if kind_of_name(name) == "image"]
    stems = sorted({_NUMBER.sub("", os.path.splitext(name)[0]) for name in names})
    if len(stems) > 1:
        text = f"the folder {clip_text(ref)!r} holds images of several names, {stems!r:.80}"
        raise BadRecord("bad_media", f"{text}: a video's frames differ in their numbers alone")
    names.sort(key=lambda name: ([int(digits) for digits in _NUMBER.findall(name)], name))
    return [urls.join_path(ref, name) for name in names]


def check_reference(media: Media, root: MediaRoot, *, exists: bool = False) -> None:
    """Refuse a reference that the reader will refuse, without looking into the file.

    Args:
        exists: refuse one whose file is not there (``missing_media``), too.
    """
    frames = frames_in(media.ref, root) if exists and media.kind == "video" else None
    for ref in refs_of(media) if frames is None else frames:
        if not isinstance(ref, str) or (media.kind == "image" and ref.startswith("data:")):
            continue
        located = resolve_reference(ref, root)
        if exists and isinstance(located, str) and not _has_file(located):
            raise BadRecord("missing_media", f"{clip_text(ref)!r} does not exist")


def forget_media() -> None:
    """Forget what is remembered of media by their paths: files may have changed since."""
    _has_file.cache_clear()
    forget_paths()
    _read_info.cache_clear()
    forget_databases()


def is_remote(media: Media, root: MediaRoot) -> bool:
    """Return whether to know a medium's size may take a request to an object store."""
    below = "://" in root.folder
    return any(isinstance(ref, str) and (below or "://" in ref) for ref in refs_of(media))


class MediaOpener:
    """Opens media; a subclass may put something else in their places.

    Args:
        root: where media may lie.
        moved: (old absolute path) -> where it is now.
    """

    def __init__(self, root: MediaRoot, moved: Moved = str) -> None:
        self._root, self._moved = root, moved

    def open(self, conversation: Conversation) -> Conversation:
        """Return a conversation with its media opened: images are PIL images, upright; a video that
        is a list of frames is a list of these, any other a `Video`; sounds are `Audio`s."""
        return map_media(conversation, self.medium)

    def medium(self, medium: Media) -> Media:
        """Return a medium, opened; it stays as it is if it names nothing."""
        ref = medium.ref
        frames = ref if isinstance(ref, list | tuple) else None
        if medium.kind == "video" and frames is None:
            frames = frames_in(self._move_reference(ref), self._root)
        if frames is not None:
            stated = {name: fact for name, fact in medium.stated.items() if name != "num_frames"}
            images = [self.reference("image", frame) for frame in frames]
            return replace(medium, ref=images, stated=stated)
        if ref is None:
            return medium
        opened = self.reference(medium.kind, ref)
        if isinstance(opened, Video):
            opened.stated = medium.stated
        return replace(medium, ref=opened)

    def reference(self, kind: str, ref: Any) -> Any:
        """Open a medium of a kind; a video or a sound decodes when it is asked to. An opened one
        stays as it is, an image upright."""
        if kind != "image" and not isinstance(ref, str | bytes | Extent):
            return ref
        label = label_of(ref) if isinstance(ref, str) else None
        return KINDS[kind].open(self.located_at(ref), label)

    def located_at(self, ref: Any) -> Any:
        """Return where a reference leads, through `moved` if it is absolute; anything else as it
        is."""
        return (
            resolve_reference(self._move_reference(ref), self._root)
            if isinstance(ref, str)
            else ref
        )

    def _move_reference(self, ref: Any) -> Any:
        """A reference through `moved`, if it is an absolute one."""
        path = urls.local_path(ref) if isinstance(ref, str) else ""
        return self._moved(path) if os.path.isabs(path) or urls.is_url(path) else ref


@functools.lru_cache(maxsize=1 << 16)
def _has_file(path: str) -> bool:
    with raise_unreadable(path):
        return storage.is_file(path)
