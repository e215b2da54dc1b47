"""A record's media, opened as a transformers processor takes them.

Images stay what they are, or become RGB. Sound becomes one channel at the processor's rate. A video
becomes frames and what is known of it (`VideoMetadata`), from which processors sample frames and
write times; its own sound is left out, whatever the processor could do with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from packidx.encode.blanks import BlankVideo
from packidx.encode.imports import allow_cuda_torchvision, import_torch
from packidx.errors import BadRecord
from packidx.processor.assemble import ProcessorFiles
from packidx.processor.requests import requested
from packidx.records.conversation import Conversation, Media, MediaInfo, map_media
from packidx.records.media.clips import Audio, Video
from packidx.records.media.images import open_image
from packidx.records.media.opener import media_info
from packidx.records.media.paths import ANYWHERE

_NO_RATE = 16000
"""What transformers takes where a processor states no sampling rate."""


def info_of(medium: Media) -> MediaInfo:
    """Return what decides a medium's tokens: an image's size, a video's frames, a sound's
    length."""
    if medium.kind != "image":
        return media_info(medium, ANYWHERE)
    width, height = opened_image(medium).size
    return MediaInfo(height, width)


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


def refuse_unsupported(conversation: Conversation, files: ProcessorFiles) -> None:
    """
    Raises:
        BadRecord: the processor cannot encode a kind of its media.
    """
    for medium in conversation.media:
        if files.vision is None or medium.kind not in files.vision.placeholders:
            raise BadRecord("unsupported_media", f"{files.name} cannot encode {medium.kind}")


def as_requested(conversation: Conversation, files: ProcessorFiles) -> Conversation:
    """Return a conversation with media that are as their options ask for (`processor.requests`).

    Raises:
        BadRecord: ``unsupported_media_option``, or a medium cannot be opened.
    """

    def changed(medium: Media) -> Media:
        if not medium.requests:
            return medium
        info = info_of(medium)
        asked = requested(medium, info, files)
        if asked is None or asked == info:
            return medium
        if medium.kind != "image":
            stated = {**medium.stated, "frame_indices": asked.frame_indices}
            return replace(medium, stated=stated, requests={})
        image, size = opened_image(medium), (asked.width, asked.height)
        with broken_images():
            image = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        return Media("image", image)

    return map_media(conversation, changed)


@contextlib.contextmanager
def broken_images() -> Iterator[None]:
    """Raise a BadRecord (``broken_media``) for what PIL raises while it decodes an image."""
    try:
        yield
    except (OSError, SyntaxError, ValueError) as cause:
        raise BadRecord("broken_media", f"an image cannot be decoded: {cause}") from cause


Opened = tuple[Conversation, dict[str, Any]]
"""A conversation whose ``Media.ref`` are what a processor takes, and the options of its call."""


def opened(
    conversation: Conversation,
    take: Callable[[MediaInfo], np.ndarray],
    processor: Any,
    *,
    every_frame: bool = False,
) -> Opened:
    """Return a conversation's media as a processor takes them.

    Args:
        take: a video that says nothing of its frames → the numbers of those that are used.
        processor: whose parts say how they take images and sound.
        every_frame: give all frames of such videos, which the processor is to sample by itself, as
            it does with files; where another of the conversation says which are used, as `take`.

    Raises:
        BadRecord: a medium cannot be decoded, or is not what the record says.
        MissingExtraError: a package is missing.
    """
    media = conversation.media
    infos = [info_of(medium) if medium.kind == "video" else None for medium in media]
    is_stated = [
        info is not None and (info.extracted or info.frame_indices is not None) for info in infos
    ]
    samples = every_frame and not any(is_stated)
    refs, metadata = [], []
    for medium, info, is_own in zip(media, infos, is_stated, strict=True):
        if info is not None:
            frames = np.arange(info.num_frames)
            if is_own and info.frame_indices is not None:
                frames = np.asarray(info.frame_indices)
            elif not (is_own or samples):
                frames = take(info)
            refs.append(_frames(medium, info, frames))
            metadata.append(metadata_of(info, frames))
        elif medium.kind == "audio":
            sound = medium.ref if isinstance(medium.ref, Audio) else Audio(medium.ref)
            refs.append(sound.waveform(sampling_rate_of(processor)))
        else:
            refs.append(decoded_image(medium, processor))
    options: dict[str, Any] = {"video_metadata": metadata} if metadata else {}
    if metadata and not samples:
        options["do_sample_frames"] = False
    left = iter(refs)
    return map_media(conversation, lambda each: replace(each, ref=next(left))), options


def decoded_image(medium: Media, processor: Any) -> Any:
    """An image with its pixels decoded; in RGB, as transformers' `load_image` opens files, where
    the image processor does not see to that.

    Raises:
        BadRecord: ``broken_media``, or as `opened_image`.
    """
    image = opened_image(medium)
    with broken_images():
        image.load()
    part = getattr(processor, "image_processor", None)
    if getattr(part, "do_convert_rgb", None) or getattr(image, "mode", "RGB") == "RGB":
        return image
    return image.convert("RGB")


def _frames(medium: Media, info: MediaInfo, numbers: np.ndarray) -> Any:
    """Some frames as uint8 ``[n, 3, height, width]``, channels first, as processors make them: no
    size is mistaken for the number of channels.

    Raises:
        BadRecord: the video cannot be decoded, or is not what the record says.
    """
    video = medium.ref if isinstance(medium.ref, Video) else Video(medium.ref)
    if isinstance(video, BlankVideo):
        return video.tensor(numbers)
    frames = video.frames(np.arange(info.num_frames) if info.extracted else numbers)
    if frames.shape[1:3] != (info.height, info.width):
        height, width = frames.shape[1:3]
        raise BadRecord(
            "broken_media",
            f"{video.label} has frames of {width}x{height} pixels, "
            f"the record says {info.width}x{info.height}",
        )
    return import_torch().from_numpy(frames).permute(0, 3, 1, 2).contiguous()


def metadata_of(info: MediaInfo, numbers: np.ndarray) -> Any:
    """transformers' `VideoMetadata` of a video of which these frames are taken."""
    allow_cuda_torchvision()
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=info.num_frames,
        fps=info.fps,
        duration=None if info.fps is None else info.num_frames / info.fps,
        height=info.height,
        width=info.width,
        frames_indices=numbers.tolist(),
    )


def sampling_rate_of(processor: Any) -> int:
    """Samples per second that a processor takes of sound."""
    part = getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))
    return int(getattr(part, "sampling_rate", None) or _NO_RATE)
