"""A record's media as the encoder takes them."""

from __future__ import annotations

from typing import Any

from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.records.conversation import Conversation, Media, MediaInfo
from packidx.records.media.images import open_image
from packidx.records.media.paths import MediaRoot
from packidx.records.media.video import Video, media_info


def info_of(medium: Media) -> MediaInfo:
    """What decides a medium's tokens: an image's size, a video's frames."""
    if medium.kind == "video":
        return media_info(medium, MediaRoot("."))
    width, height = opened_image(medium).size
    return MediaInfo(height, width)


def video_of(medium: Media) -> Video:
    """A medium as a video, opened or not."""
    return medium.ref if isinstance(medium.ref, Video) else Video(medium.ref)


def opened_image(medium: Media) -> Any:
    """A medium as a PIL image.

    Raises:
        BadRecord: ``missing_media``, or as `open_image`.
    """
    if hasattr(medium.ref, "size") and hasattr(medium.ref, "convert"):  # a PIL image
        return medium.ref
    if isinstance(medium.ref, str | bytes):
        return open_image(medium.ref)
    raise BadRecord("missing_media", f"an image is given as {type(medium.ref).__name__}: open it")


def decoded_image(medium: Media) -> Any:
    """The same with its pixels decoded.

    Raises:
        BadRecord: ``broken_media``, or as `opened_image`.
    """
    image = opened_image(medium)
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as cause:  # PIL, on decoding a broken file
        raise BadRecord("broken_media", f"an image cannot be decoded: {cause}") from cause
    return image


def refuse_unsupported(conversation: Conversation, files: ProcessorFiles) -> None:
    """
    Raises:
        BadRecord: the processor cannot encode a kind of its media.
    """
    for medium in conversation.media:
        if files.vision is None or medium.kind not in files.vision.feature_tokens:
            raise BadRecord("unsupported_media", f"{files.name} cannot encode {medium.kind}")
