"""Opened media as a whole transformers processor takes them.

Images stay what they are, or become RGB. Sound becomes one channel at the processor's rate. A video
becomes frames and what is known of it (`VideoMetadata`), from which processors sample frames and
write times. A video's own sound is left out, whatever the processor could do with it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packidx.encode.imports import import_torch
from packidx.encode.media import frames_of, info_of, metadata_of, video_of
from packidx.records.conversation import Conversation, Media, MediaInfo, Turn
from packidx.records.media.audio import Audio
from packidx.records.media.video import Video

_NO_RATE = 16000
"""What transformers takes where a processor states no sampling rate."""


class BlankVideo(Video):
    """A black video that is as small as its shape.

    Args:
        info: its shape.
        is_abstract: whether its tensor has a shape alone (torch's device ``meta``): what is done to
            it costs nothing, and fails where a value is looked at.
    """

    def __init__(self, info: MediaInfo, *, is_abstract: bool = False) -> None:
        super().__init__((), "a blank video")
        self.info = info
        self.is_abstract = is_abstract

    def tensor(self, num_frames: int) -> Any:
        """uint8 ``[num_frames, 3, height, width]``."""
        torch = import_torch()
        device = "meta" if self.is_abstract else "cpu"
        frame = torch.zeros((1, 3, self.info.height, self.info.width), dtype=torch.uint8)
        return frame.to(device).expand(num_frames, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class Given:
    """A conversation whose ``Media.ref`` are what a processor takes, and what it must know more."""

    conversation: Conversation
    options: dict[str, Any]


Build = Callable[[Any, Given], Any]
"""(processor, what it is given) → a sample; whatever it raises."""


def given(
    processor: Any, conversation: Conversation, build: Build, every_frame: bool = False
) -> Given:
    """A conversation's media, opened, as `processor` takes them.

    Args:
        build: how a sample is built of what this returns, to see which frames are taken.
        every_frame: whether it gets all frames of a video and samples them by itself, as it does
            with files; else it gets those alone that it would take.

    Raises:
        BadRecord: a medium cannot be decoded, or is not what the record says.
        MissingExtraError: a package is missing.
    """
    if not conversation.media:
        return Given(conversation, {})
    infos = {
        number: info_of(medium)
        for number, medium in enumerate(conversation.media)
        if medium.kind == "video"
    }
    stated = any(info.extracted or info.frame_indices is not None for info in infos.values())
    samples = every_frame and not stated
    options: dict[str, Any] = {}
    refs, metadata = [], []
    for number, medium in enumerate(conversation.media):
        if medium.kind == "video":
            info = infos[number]
            frames = np.arange(info.num_frames) if samples else _taken(processor, medium, build)
            refs.append(_pixels(video_of(medium), info, frames))
            metadata.append(metadata_of(info, frames))
        else:
            refs.append((_heard if medium.kind == "audio" else _seen)(medium, processor))
    if metadata:
        options = {"video_metadata": metadata}
        options |= {} if samples else {"do_sample_frames": False}
    return Given(_with_refs(conversation, refs), options)


def sampling_rate_of(processor: Any) -> int:
    """Samples per second that it takes of sound."""
    part = getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))
    return int(getattr(part, "sampling_rate", None) or _NO_RATE)


def _seen(medium: Media, processor: Any) -> Any:
    """An image; in RGB, as transformers' `load_image` opens files, where the image processor does
    not see to that."""
    image: Any = medium.ref
    part = getattr(processor, "image_processor", None)
    if getattr(part, "do_convert_rgb", None) or getattr(image, "mode", "RGB") == "RGB":
        return image
    return image.convert("RGB")


def _heard(medium: Media, processor: Any) -> Any:
    sound = medium.ref if isinstance(medium.ref, Audio) else Audio(medium.ref)
    return sound.waveform(sampling_rate_of(processor))


# -- videos ----------------------------------------------------------------------------------------


def _pixels(video: Video, info: MediaInfo, frames: np.ndarray) -> Any:
    """uint8 ``[n, 3, height, width]``."""
    if isinstance(video, BlankVideo):
        return video.tensor(len(frames))
    return frames_of(video, info, frames)


def _taken(processor: Any, medium: Media, build: Build) -> np.ndarray:
    """Numbers of the frames that are used of a video."""
    info = info_of(medium)
    if info.frame_indices is not None:
        return np.asarray(info.frame_indices)
    if info.extracted:
        return np.arange(info.num_frames)
    return sampled_frames(processor, info, build)


class _Enough(BaseException):
    """Frames were sampled, or would be processed without."""


def sampled_frames(processor: Any, info: MediaInfo, build: Build) -> np.ndarray:
    """``[f]`` numbers of the frames that `processor` takes of a file of this shape.

    It is asked: it gets a blank video, and is stopped when it has chosen.
    """
    every = np.arange(info.num_frames)
    part: Any = getattr(processor, "video_processor", None)
    if not hasattr(part, "sample_frames"):
        return every
    spied, chosen = copy.copy(processor), list[np.ndarray]()
    spied.video_processor = part = copy.copy(part)
    sample_frames = part.sample_frames

    def noted(*given: Any, **options: Any) -> Any:
        chosen.append(np.asarray(sample_frames(*given, **options), np.int64).reshape(-1))
        raise _Enough

    def processed(*_: Any, **__: Any) -> Any:
        raise _Enough

    part.sample_frames, part._prepare_input_videos = noted, processed
    blank = BlankVideo(info, is_abstract=True).tensor(info.num_frames)
    asked = Conversation((Turn("user", (Media("video", blank), "What is it?")),))
    with contextlib.suppress(_Enough, Exception):
        build(spied, Given(asked, {"video_metadata": [metadata_of(info, every)]}))
    return chosen[0] if chosen else every


def _with_refs(conversation: Conversation, refs: Sequence[Any]) -> Conversation:
    left = iter(refs)
    turns = tuple(
        replace(
            turn,
            parts=tuple(
                replace(part, ref=next(left)) if isinstance(part, Media) else part
                for part in turn.parts
            ),
        )
        for turn in conversation.turns
    )
    return replace(conversation, turns=turns)
