"""The kinds of media, one file each: what a record states, what a header says, and opening."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.audio import Audio, audio_info, stated_audio
from packidx.records.media.images import image_info, open_image, stated_image
from packidx.records.media.video import Video, stated_video, video_info


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
