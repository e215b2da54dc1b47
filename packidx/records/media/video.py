"""Videos: what their headers say, and their frames.

A video is a file (path, URL or bytes) or a list of frames that were extracted from one, in order.
Frame n is the n-th that the decoder gives. Of one in an object store, the header is read there, and
its frames from the copy in the local cache. Rotation metadata is applied: frames are upright, as
transformers' default reader (torchcodec since 0.11) has them; its `pyav` reader leaves them lying.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.errors import BadRecord
from packidx.io.ranges import Extent
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.image_files import Source, label_of
from packidx.records.media.images import open_image
from packidx.records.media.inside import InRoot
from packidx.records.media.paths import MediaRoot, resolve
from packidx.records.media.references import is_opened, refs_of
from packidx.records.media.video_headers import (
    frames_info,
    local,
    opened,
    quarter_turns,
    remembered_info,
    video_info,
)

Frames = tuple[Any, ...]


class Video:
    """A video that can be looked at and decoded; holds no file open, and is as small as its source.

    Args:
        source: a path, a file's bytes, or the list of extracted frames: paths, bytes, PIL images.
            A path in a media root is an `InRoot`.
        label: how errors name it; by default the path.
    """

    def __init__(self, source: Source | Sequence[Any], label: str | None = None) -> None:
        self.source: Source | Frames
        if isinstance(source, str | InRoot | bytes | Extent):
            self.source, name = source, label_of(source, "a video")
        else:
            self.source, name = tuple(source), "a video"
        self.label = label or name

    @functools.cached_property
    def info(self) -> MediaInfo:
        """What the header, or the headers of all frames, say.

        Raises:
            BadRecord, MissingExtraError: as `video_info` and `frames_info`.
        """
        if isinstance(self.source, tuple):
            return frames_info(self.source)
        return video_info(self.source, label=self.label)

    def frames(self, indices: ArrayLike) -> NDArray[np.uint8]:
        """Frames as RGB pixels.

        Args:
            indices: ``[n]`` numbers of frames, in any order, repeated or not.

        Returns:
            uint8 ``[n, height, width, 3]``.

        Raises:
            BadRecord: ``broken_media``: it cannot be decoded, or not as its header says.
            MissingExtraError: PyAV is not installed, or too old a release.
        """
        numbers = np.asarray(indices, np.int64).reshape(-1)
        indices_of: dict[int, list[int]] = {}
        for index, number in enumerate(numbers.tolist()):
            indices_of.setdefault(number, []).append(index)
        pixels = np.empty((len(numbers), self.info.height, self.info.width, 3), np.uint8)
        for number, frame in self._decoded(set(indices_of)):
            if frame.shape != pixels.shape[1:]:
                raise BadRecord(
                    "broken_media",
                    f"frame {number} of {self.label} has {frame.shape[1]}x{frame.shape[0]} pixels, "
                    f"the video {self.info.width}x{self.info.height}",
                )
            pixels[indices_of.pop(number)] = frame
        if indices_of:
            raise BadRecord("broken_media", f"{self.label} has no frame {min(indices_of)}")
        return pixels

    def _decoded(self, wanted: set[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        if not isinstance(self.source, tuple):
            yield from _decode(self.source, wanted, self.info.num_frames, self.label)
            return
        for number in sorted(wanted):
            if 0 <= number < len(self.source):
                yield number, _pixels(self.source[number])


def media_info(media: Media, root: MediaRoot) -> MediaInfo:
    """What is known of a video in a record: what the record states, else what its headers say.

    Answers about paths are remembered until `opener.forget_media`.

    Raises:
        BadRecord: as `resolve`, `video_info` and `frames_info`; ``bad_media`` where there is
            nothing to look at, or where the record asks for a frame that is not there.
        MissingExtraError: PyAV is not installed, or too old a release.
    """
    info = _stated(media, root) or _looked_at(media.ref, root)
    stated = {"height": media.height, "width": media.width, "fps": media.fps}
    if not info.extracted:
        stated["num_frames"] = media.num_frames
    known: dict[str, Any] = {k: fact for k, fact in stated.items() if fact is not None}
    info = replace(info, frame_indices=media.frame_indices, **known)
    _check(info)
    return info


def _stated(media: Media, root: MediaRoot) -> MediaInfo | None:
    """What the record states, where that is everything and no file need be looked at."""
    frames = media.ref if isinstance(media.ref, list | tuple) else None
    num_frames = media.num_frames if frames is None else len(frames)
    if media.height is None or media.width is None or num_frames is None:
        return None
    if isinstance(media.ref, Video) or (frames is None and media.fps is None):
        return None
    for ref in refs_of(media):
        if isinstance(ref, str):
            resolve(ref, root)
    return MediaInfo(media.height, media.width, num_frames, extracted=frames is not None)


def _check(info: MediaInfo) -> None:
    if info.height < 1 or info.width < 1 or info.num_frames < 1:
        text = f"a video of {info.num_frames} frames of {info.width}x{info.height} pixels"
        raise BadRecord("broken_media", text)
    if info.fps is not None and not 0 < info.fps < float("inf"):
        raise BadRecord("bad_media", f"a video of {info.fps} frames per second")
    indices = info.frame_indices
    if indices is None:
        return
    if info.extracted:
        if len(indices) != info.num_frames:
            text = f"frame_indices names {len(indices)} frames, the video has {info.num_frames}"
            raise BadRecord("bad_media", text)
        return
    if not indices:
        raise BadRecord("bad_media", "frame_indices names no frame")
    for number in indices:
        if not 0 <= number < info.num_frames:
            text = f"frame {number} is asked for of a video of {info.num_frames} frames"
            raise BadRecord("bad_media", text)


def _looked_at(ref: Any, root: MediaRoot) -> MediaInfo:
    if isinstance(ref, Video):
        return ref.info
    if isinstance(ref, bytes | Extent):
        return video_info(ref)
    if isinstance(ref, list | tuple):
        return frames_info([resolve(r, root) if isinstance(r, str) else r for r in ref])
    if not isinstance(ref, str):
        raise BadRecord("bad_media", "a video without a path, bytes, frames or stated size")
    return remembered_info(video_info, ref, root)


def _decode(
    source: Source, wanted: set[int], num_frames: int, label: str
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    last, seen = max(wanted, default=-1), 0
    with local(source) as here, opened(here, label) as (container, stream):
        for number, frame in enumerate(container.decode(stream)):
            seen = number + 1
            if number in wanted:
                pixels = frame.to_ndarray(format="rgb24")
                yield number, np.rot90(pixels, quarter_turns(frame))
            if number >= last:
                return
    if seen <= last:
        raise BadRecord(
            "broken_media",
            f"{label} has {seen} frames where its header says {num_frames}: write it anew",
        )


def _pixels(frame: Any) -> NDArray[np.uint8]:
    if not (isinstance(frame, str | InRoot | bytes | Extent) or is_opened(frame)):
        raise BadRecord("bad_media", f"a frame given as {type(frame).__name__}")
    try:
        return np.asarray(open_image(frame).convert("RGB"))
    except (OSError, SyntaxError) as error:  # PIL, on decoding a broken file
        raise BadRecord("broken_media", f"a frame cannot be decoded: {error}") from None
