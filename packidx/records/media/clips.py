"""Videos and sounds: what their headers say, frames and samples, as PyAV reads them.

A video is a file (path, URL or bytes) or a list of frames that were extracted from one, in order.
Frame n is the n-th that the decoder gives. Rotation metadata is applied: frames are upright, as
transformers' default reader (torchcodec since 0.11) has them; its `pyav` reader leaves them lying.

Of a sound, a header is believed where it counts samples (WAV, FLAC); a file of any other kind is
decoded once to count them, since its packets hold more than is heard. Sound is mixed down, and its
length after resampling rounded up, as transformers' `load_audio` does with its back end soundfile.
A video's own sound is not looked at. What is opened must be what was counted.

Of a file in an object store the header is read there, and the rest from the copy in the cache.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packidx.errors import BadRecord, MissingExtraError, PackidxError
from packidx.io import cache, urls
from packidx.io.files import refuse_open_files
from packidx.io.ranges import Extent
from packidx.records.conversation import MediaInfo
from packidx.records.media.images import (
    MAX_PIXELS,
    Source,
    image_info,
    label_of,
    name_store_errors,
    open_file,
    open_image,
)
from packidx.records.media.paths import clip_text
from packidx.records.media.references import rate_of, unsupported_option

# Containers of pixels and sound alone: playlists and scripts, which name further files, are none.
_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "flv", "asf", "ogg", "gif"),
    *("h264", "hevc", "ivf", "mxf", "rm", "dv", "nut", "apng", "webp_pipe"),
    *("wav", "w64", "flac", "mp3", "aac", "aiff", "au", "caf", "amr"),
)
_PIECE = 1 << 16

SHOWN = {
    "image": frozenset(("height", "width")),
    "video": frozenset(("height", "width", "num_frames", "fps")),
    "audio": frozenset(("num_samples", "sampling_rate")),
}
"""Stated facts that say all that a header says, by kind."""

Frames = tuple[Any, ...]
Samples = NDArray[np.float32]


@contextmanager
def _open_stream(source: Source, label: str, kind: str = "video") -> Iterator[tuple[Any, Any]]:
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
            text = f"{label} cannot be read as {'a ' * (kind == 'video')}{kind}: {clip_text(text)}"
            raise BadRecord("broken_media", text) from None


def _to_local(source: Source, label: str) -> Source:
    """Return a source that is read in large blocks, with few requests."""
    if isinstance(source, Extent):
        return source.read()
    if isinstance(source, str) and urls.is_url(source):
        with name_store_errors(source, label):
            return cache.fetch_copy(source)
    return source


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
        self.stated: Mapping[str, Any] = {}
        """Facts that a record states of it (`Media.stated`)."""

    @functools.cached_property
    def info(self) -> MediaInfo:
        """The facts in the header, or the headers of all frames, and those that are `stated`."""
        if isinstance(self.source, tuple):
            return with_stated(frames_info(self.source), self.stated)
        return with_stated(video_info(self.source, label=self.label), self.stated)

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
        numbers, info = np.asarray(indices, np.int64).reshape(-1), self.info
        pixels = np.empty((len(numbers), info.height, info.width, 3), np.uint8)
        missing = {*numbers.tolist()}
        for number, frame in self._decoded(frozenset(missing)):
            if frame.shape != pixels.shape[1:]:
                has = f"frame {number} of {self.label} has {frame.shape[1]}x{frame.shape[0]} pixels"
                text = f"{has}, the video {info.width}x{info.height}"
                raise BadRecord("broken_media", text)
            pixels[numbers == number] = frame
            missing.remove(number)
        if missing:
            raise BadRecord("broken_media", f"{self.label} has no frame {min(missing)}")
        return pixels

    def _decoded(self, wanted: frozenset[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        if isinstance(self.source, tuple):
            for number in sorted(wanted.intersection(range(len(self.source)))):
                try:
                    yield number, np.asarray(open_image(self.source[number]).convert("RGB"))
                except (OSError, SyntaxError) as error:  # PIL, on decoding a broken file
                    raise BadRecord("broken_media", f"a frame cannot be decoded: {error}") from None
            return
        last, seen = max(wanted, default=-1), 0
        with _open_stream(_to_local(self.source, self.label), self.label) as (container, stream):
            for number, frame in enumerate(container.decode(stream)):
                seen = number + 1
                if number in wanted:
                    pixels = frame.to_ndarray(format="rgb24")
                    yield number, np.rot90(pixels, _quarter_turns(frame))
                if number >= last:
                    return
        if seen <= last:
            text = f"{self.label} has {seen} frames where its header says {self.info.num_frames}"
            raise BadRecord("broken_media", f"{text}: write it anew")


def with_stated(
    info: MediaInfo, stated: Mapping[str, Any], requests: Mapping[str, Any] | None = None
) -> MediaInfo:
    """The facts of a video: those that its record states win over those of its headers.

    Raise ``bad_media`` if the record asks for a frame that is not there, and
    ``unsupported_media_option`` if the file's header says otherwise.
    """
    own = ("height", "width", "fps", "frame_indices") + ("num_frames",) * (not info.extracted)
    known = {name: stated[name] for name in own if name in stated}
    if info.extracted and (rate := rate_of(requests or {}, "bad_media")) is not None:
        known.setdefault("fps", rate)  # of a folder of frames
    if not info.extracted and not SHOWN["video"] <= known.keys():
        for name in ("height", "width", "num_frames"):
            if known.get(name, value := getattr(info, name)) != value:
                raise unsupported_option("video", name, known[name], f"has {value}")
    info = replace(info, **known)
    num, indices = info.num_frames, info.frame_indices or ()
    if info.extracted and indices and len(indices) != num:
        raise BadRecord("bad_media", f"frame_indices has {len(indices)}, the video has {num}")
    for number in () if info.extracted else indices:
        if not 0 <= number < num:
            raise BadRecord("bad_media", f"frame {number} is asked for of a video of {num} frames")
    return info


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
    with _open_stream(source, label) as (container, stream):
        height, width = int(stream.height), int(stream.width)
        if height * width > MAX_PIXELS:
            raise BadRecord("media_too_large", f"{label} has frames of {width}x{height} pixels")
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
        if _quarter_turns(first) % 2:
            height, width = width, height
    if not num_frames:
        with _open_stream(_to_local(source, label), label) as (container, stream):
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    raise BadRecord("broken_media", f"{label} is truncated: restore the file")
                num_frames += bool(packet.size and not packet.is_discard)
    return MediaInfo(height, width, num_frames, float(rate) if rate else None)


def frames_info(frames: Sequence[Any]) -> MediaInfo:
    """Size and number of frames that were extracted; their headers alone are read. Raise
    ``broken_media`` if there is none, or they differ in size; else as `image_info`."""
    if not frames:
        raise BadRecord("broken_media", "a video of no frames")
    sizes = []
    for frame in frames:
        is_file = isinstance(frame, str | bytes | Extent)
        image = image_info(frame) if is_file else open_image(frame)
        sizes.append((image.height, image.width))
        if sizes[-1] != sizes[0]:
            (height, width), first = sizes[-1], sizes[0]
            text = f"frame 0 of a video has {first[1]}x{first[0]} pixels, frame {len(sizes) - 1}"
            raise BadRecord("broken_media", f"{text} has {width}x{height}: all must agree")
    return MediaInfo(*sizes[0], num_frames=len(frames), extracted=True)


def _quarter_turns(frame: Any) -> int:
    """Return how many quarters counter-clockwise the frame must be turned to stand upright."""
    degrees = int(frame.rotation)
    turns = (abs(degrees) + 45) // 90
    return (turns if degrees > 0 else -turns) % 4


# -- sounds ----------------------------------------------------------------------------------------


class Audio:
    """Sound that can be looked at and decoded; holds no file open.

    Args:
        source: a path, a URL, a file's bytes, or where they lie.
        label: how errors name it; by default the path.
    """

    def __init__(self, source: Source, label: str | None = None) -> None:
        self.source = source
        self.label = label or label_of(source, "a sound")

    @functools.cached_property
    def info(self) -> MediaInfo:
        """Number of samples, and their rate; errors as of `audio_info`."""
        stated = _stated_by_header(self.source, self.label)
        if stated is None:
            samples, rate = self._decoded  # kept: who asks for this wants the sound as well
            stated = _sound_info(len(samples), rate, self.label)
        return stated

    def waveform(self, sampling_rate: int) -> Samples:
        """All of it, in one channel.

        Args:
            sampling_rate: samples per second that are wanted.

        Returns:
            float32 ``[n]`` within -1 and 1, n as `resampled_length` has it.

        Raises:
            BadRecord: ``broken_media``: it cannot be decoded, or not as its header says.
            MissingExtraError: PyAV is not installed.
        """
        samples, rate = self._decoded
        num, stated = self.info.num_samples, self.info.sampling_rate
        if (len(samples), rate) != (num, stated):
            text = f"{self.label} has {len(samples)} samples at {rate} Hz where its header says"
            raise BadRecord("broken_media", f"{text} {num} at {stated} Hz: write it anew")
        return _resample_mono(samples, rate, sampling_rate)

    @functools.cached_property
    def _decoded(self) -> tuple[Samples, int]:
        """All samples, mixed down, and their rate."""
        pieces, rate = [np.zeros(0, np.float32)], 0
        for piece, rate in _decode_pieces(self.source, self.label):  # noqa: B007, the last rate is all's
            pieces.append(piece.mean(axis=0, dtype=np.float32))
        return np.concatenate(pieces), rate


def resampled_length(num_samples: int, rate: int, wanted: int) -> int:
    """Samples that sound has at another rate."""
    return -(-num_samples * wanted // rate)


def audio_info(source: Source, label: str | None = None) -> MediaInfo:
    """Return how many samples a file of sound has in each channel, and its rate.

    Raises:
        BadRecord: ``missing_media`` or ``broken_media``.
        MissingExtraError: PyAV, which decodes all but WAV and FLAC, is not installed.
    """
    label = label or label_of(source, "a sound")
    stated = _stated_by_header(source, label)
    if stated is None:
        num_samples = rate = 0
        for piece, rate in _decode_pieces(source, label):  # noqa: B007, the last rate is all's
            num_samples += piece.shape[1]
        stated = _sound_info(num_samples, rate, label)
    return stated


def _sound_info(num_samples: int, rate: int, label: str) -> MediaInfo:
    if num_samples < 1 or rate < 1:
        raise BadRecord("broken_media", f"{label} has {num_samples} samples at {rate} Hz")
    return MediaInfo(0, 0, num_samples=num_samples, sampling_rate=rate)


def _stated_by_header(source: Source, label: str) -> MediaInfo | None:
    """Return what the header of a WAV or a FLAC counts; None of any other file, or where it does
    not."""
    with _open_stream(source, label, "audio") as (container, stream):
        rate, num_samples = int(stream.rate), int(stream.duration or 0)
        is_pcm = container.format.name == "wav" and stream.codec_context.name.startswith("pcm_")
        is_counted = stream.time_base == Fraction(1, rate or 1) and num_samples > 0
        if not is_counted or not (is_pcm or container.format.name == "flac"):
            return None
    return _sound_info(num_samples, rate, label)


def _decode_pieces(source: Source, label: str) -> Iterator[tuple[Samples, int]]:
    """Pieces ``[channels, n]`` with their rate, which is the same for all."""
    with _open_stream(_to_local(source, label), label, "audio") as (container, stream):
        import av

        as_floats = av.AudioResampler(format="fltp")  # and an error where rate or channels change
        for frame in itertools.chain(container.decode(stream), [None]):
            for piece in as_floats.resample(frame):
                yield np.asarray(piece.to_ndarray(), np.float32), int(piece.sample_rate)


def _resample_mono(samples: Samples, rate: int, wanted: int) -> Samples:
    """Resample by FFmpeg, as torchcodec does, the first back end of transformers."""
    if rate == wanted:
        return samples
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted)
    pieces = []
    for start in range(0, len(samples), _PIECE):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + _PIECE], "flt", "mono")
        frame.sample_rate = rate
        pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    length = resampled_length(len(samples), rate, wanted)
    whole = np.concatenate([*pieces, np.zeros(length, np.float32)])
    return np.ascontiguousarray(whole[:length], np.float32)
