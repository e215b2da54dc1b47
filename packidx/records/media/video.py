"""Videos: what their headers say, and their frames.

A video is a file (path, URL or bytes) or a list of frames that were extracted from one, in order.
Frame n is the n-th that the decoder gives. Of one in an object store, the header is read there, and
its frames from the copy in the local cache. Rotation metadata is applied: frames are upright, as
transformers' default reader (torchcodec since 0.11) has them; its `pyav` reader leaves them lying.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.errors import BadRecord, MissingExtraError, PackidxError
from packidx.io import cache, urls
from packidx.io.files import refuse_open_files
from packidx.io.ranges import Extent
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media.images import (
    MAX_PIXELS,
    Source,
    asked,
    image_info,
    label_of,
    open_file,
    open_image,
)
from packidx.records.media.paths import shortened
from packidx.records.media.references import rate_of, unsupported_option

# Containers of pixels and sound alone: playlists and scripts, which name further files, are none.
_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "flv", "asf", "ogg", "gif"),
    *("h264", "hevc", "ivf", "mxf", "rm", "dv", "nut", "apng", "webp_pipe"),
    *("wav", "w64", "flac", "mp3", "aac", "aiff", "au", "caf", "amr"),
)

Frames = tuple[Any, ...]


class Video:
    """A video that can be looked at and decoded; holds no file open, and is as small as its source.

    Args:
        source: a path, a file's bytes, or the list of extracted frames: paths, bytes, PIL images.
            label: how errors name it; by default the path.
    """

    def __init__(self, source: Source | Sequence[Any], label: str | None = None) -> None:
        self.source: Source | Frames
        if isinstance(source, str | bytes | Extent):
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
            MissingExtraError: PyAV is not installed.
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
            yield from self._decoded_file(self.source, wanted)
            return
        for number in sorted(wanted.intersection(range(len(self.source)))):
            try:
                yield number, np.asarray(open_image(self.source[number]).convert("RGB"))
            except (OSError, SyntaxError) as error:  # PIL, on decoding a broken file
                raise BadRecord("broken_media", f"a frame cannot be decoded: {error}") from None

    def _decoded_file(
        self, source: Source, wanted: set[int]
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        last, seen = max(wanted, default=-1), 0
        with opened(local(source, self.label), self.label) as (container, stream):
            for number, frame in enumerate(container.decode(stream)):
                seen = number + 1
                if number in wanted:
                    pixels = frame.to_ndarray(format="rgb24")
                    yield number, np.rot90(pixels, quarter_turns(frame))
                if number >= last:
                    return
        if seen <= last:
            text = f"{self.label} has {seen} frames where its header says {self.info.num_frames}"
            raise BadRecord("broken_media", f"{text}: write it anew")


def with_stated(info: MediaInfo, media: Media) -> MediaInfo:
    """What is known of a video, with what its record states in place of what its headers say.

    Raises:
        BadRecord: ``bad_media``: the record asks for a frame that is not there.
            ``unsupported_media_option``: the file's header says otherwise.
    """
    stated = {"height": media.height, "width": media.width, "fps": media.fps}
    if not info.extracted:
        stated["num_frames"] = media.num_frames
    elif media.fps is None and media.requests:  # of a folder of frames
        stated["fps"] = rate_of(media.requests, "bad_media")
    known: dict[str, Any] = {k: fact for k, fact in stated.items() if fact is not None}
    found, info = info, replace(info, frame_indices=media.frame_indices, **known)
    for name in known if not info.extracted and len(known) < len(stated) else ():
        if name != "fps" and known[name] != (value := getattr(found, name)):
            raise unsupported_option("video", name, known[name], f"has {value}")
    num, indices = info.num_frames, info.frame_indices
    if indices is not None and info.extracted and len(indices) != num:
        text = f"frame_indices names {len(indices)} frames, the video has {num}"
        raise BadRecord("bad_media", text)
    for number in indices if indices is not None and not info.extracted else ():
        if not 0 <= number < num:
            text = f"frame {number} is asked for of a video of {num} frames"
            raise BadRecord("bad_media", text)
    return info


# -- headers ---------------------------------------------------------------------------------------


def video_info(source: Source, label: str | None = None) -> MediaInfo:
    """Size, number of frames and frame rate of a video file or its bytes.

    From the container's header: the number of frames less those that its edit list hides, and the
    average frame rate (`average_rate`, as transformers 5.23's `read_video_pyav` takes it). Where
    the header has no number (Matroska, WebM, MPEG-TS) or an AVI no index, packets are counted
    without decoding them, which reads the whole file. One frame is decoded: nothing else tells the
    rotation.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
        MissingExtraError: PyAV is not installed.
    """
    label = label or label_of(source, "a video")
    with opened(source, label) as (container, stream):
        height, width = int(stream.height), int(stream.width)
        if height * width > MAX_PIXELS:
            text = f"{label} has frames of {width}x{height} pixels"
            raise BadRecord("media_too_large", text)
        entries, rate = list(stream.index_entries), stream.average_rate
        end = max((entry.pos + entry.size for entry in entries), default=0)
        if end > container.size:  # a download that was cut
            text = f"{label} is truncated: its frames reach to byte {end}, it has {container.size}"
            raise BadRecord("broken_media", f"{text}; restore the file")
        # An MP4's index marks frames that are cut off; an AVI without its index is counted.
        hidden = sum(bool(entry.is_discard) for entry in entries)
        num_frames = max(int(stream.frames) - hidden, 0) if len(entries) >= stream.frames else 0
        first = next(container.decode(stream), None)
        if first is None:
            raise BadRecord("broken_media", f"{label} has no frame that can be decoded")
        height, width = first.height, first.width
        if quarter_turns(first) % 2:
            height, width = width, height
    num_frames = num_frames or _count_packets(source, label)
    return MediaInfo(height, width, num_frames, float(rate) if rate else None)


def frames_info(frames: Sequence[Any]) -> MediaInfo:
    """Size and number of frames that were extracted; their headers alone are read.

    Raises:
        BadRecord: ``broken_media``: there is none, or they differ in size; else as `image_info`.
    """
    if not frames:
        raise BadRecord("broken_media", "a video of no frames")
    sizes = []
    for frame in frames:
        is_file = isinstance(frame, str | bytes | Extent)
        image = image_info(frame) if is_file else open_image(frame)
        sizes.append((image.height, image.width))
    for number, (height, width) in enumerate(sizes):
        if (height, width) != sizes[0]:
            raise BadRecord(
                "broken_media",
                f"frame 0 of a video has {sizes[0][1]}x{sizes[0][0]} pixels, frame {number} has "
                f"{width}x{height}: all must agree",
            )
    return MediaInfo(*sizes[0], num_frames=len(frames), extracted=True)


def _count_packets(source: Source, label: str) -> int:
    count = 0
    with opened(local(source, label), label) as (container, stream):
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise BadRecord(
                    "broken_media", f"{label} is truncated or damaged: restore the file"
                )
            count += bool(packet.size and not packet.is_discard)
    return count


def quarter_turns(frame: Any) -> int:
    """Return how many quarters counter-clockwise the frame must be turned to stand upright."""
    degrees = int(frame.rotation)
    turns = (abs(degrees) + 45) // 90
    return (turns if degrees > 0 else -turns) % 4


def local(source: Source, label: str) -> Source:
    """Return a source of which much can be read without a request for every block."""
    if isinstance(source, Extent):
        return source.read()
    if isinstance(source, str) and urls.is_url(source):
        with asked(source, label):
            return cache.local(source)
    return source


@contextmanager
def opened(source: Source, label: str, kind: str = "video") -> Iterator[tuple[Any, Any]]:
    """The container and its first stream of video or audio; whatever fails is a `BadRecord`."""
    try:
        import av
    except ImportError as error:
        text = f"reading videos and compressed audio needs PyAV ({error})"
        raise MissingExtraError(f'{text}: run pip install "packidx[video]"') from error
    file, _ = open_file(source, label)
    with file:
        try:
            options = {"format_whitelist": ",".join(_FORMATS)}
            with av.open(file, mode="r", container_options=options) as container:
                streams = getattr(container.streams, kind)
                if not streams:
                    raise BadRecord("broken_media", f"{label} has no {kind} stream")
                yield container, streams[0]
        except PackidxError:
            raise
        except Exception as error:  # FFmpeg's errors, and what PyAV makes of odd streams
            refuse_open_files(error)
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            text = f"{label} cannot be read as {'a ' * (kind == 'video')}{kind}: {shortened(text)}"
            raise BadRecord("broken_media", text) from None
