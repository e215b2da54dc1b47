"""What the header of a video says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from packidx.errors import BadRecord, MissingExtraError, PackidxError
from packidx.io import cache, urls
from packidx.io.ranges import Extent
from packidx.io.storage import unreadable
from packidx.records.conversation import MediaInfo
from packidx.records.media.image_files import Source, label_of, open_file
from packidx.records.media.images import MAX_PIXELS, image_size, open_image
from packidx.records.media.inside import InRoot
from packidx.records.media.lmdb_store import split_reference
from packidx.records.media.mp4_tables import check_claims
from packidx.records.media.paths import shortened

# Containers of pixels alone: playlists and scripts, which name further files, are none.
_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "flv", "asf", "ogg", "gif"),
    *("h264", "hevc", "ivf", "mxf", "rm", "dv", "nut", "apng", "webp_pipe"),
)


def video_info(source: Source, *, label: str | None = None) -> MediaInfo:
    """Size, number of frames and frame rate of a video file or its bytes.

    From the container's header: the number of frames less those that its edit list hides, and the
    average frame rate (`average_rate`, as transformers 5.23's `read_video_pyav` takes it). Where
    the header has no number (Matroska, WebM, MPEG-TS) or an AVI no index, packets are counted
    without decoding them, which reads the whole file. One frame is decoded: nothing else tells the
    rotation.

    Raises:
        BadRecord: ``missing_media``, ``broken_media`` or ``media_too_large``.
        MissingExtraError: PyAV is not installed, or too old a release.
    """
    label = label or label_of(source, "a video")
    with opened(source, label) as (container, stream):
        height, width = int(stream.height), int(stream.width)
        if height * width > MAX_PIXELS:
            text = f"{label} has frames of {width}x{height} pixels"
            raise BadRecord("media_too_large", text)
        _check_whole(container, stream, label)
        num_frames, rate = _stated_frames(stream), stream.average_rate
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

    Args:
        frames: paths, bytes or PIL images.

    Raises:
        BadRecord: ``broken_media``: there is none, or they differ in size; else as `image_size`.
    """
    if not frames:
        raise BadRecord("broken_media", "a video of no frames")
    sizes = [_frame_size(frame) for frame in frames]
    for number, (height, width) in enumerate(sizes):
        if (height, width) != sizes[0]:
            text = (
                f"frame 0 of a video has {sizes[0][1]}x{sizes[0][0]} pixels, frame {number} has "
                f"{width}x{height}: all must agree"
            )
            raise BadRecord("broken_media", text)
    return MediaInfo(*sizes[0], num_frames=len(frames), extracted=True)


def _check_whole(container: Any, stream: Any, label: str) -> None:
    """Refuse a file that ends before the frames that its index names, as a cut download does, or
    that cannot hold so many of them."""
    if len(stream.index_entries) > container.size:
        text = f"{label} claims {len(stream.index_entries)} frames in {container.size} bytes"
        raise BadRecord("broken_media", text)
    end = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
    if end > container.size:
        text = f"{label} is truncated: its frames reach to byte {end}, it has {container.size}"
        raise BadRecord("broken_media", f"{text}; restore the file")


def _stated_frames(stream: Any) -> int:
    """The header's number of frames, or 0; an MP4's index says which of them are cut off."""
    entries = list(stream.index_entries)
    if len(entries) < stream.frames:
        return 0  # an AVI without its index, which stands at its end
    hidden = sum(bool(entry.is_discard) for entry in entries)
    return max(int(stream.frames) - hidden, 0)


def _count_packets(source: Source, label: str) -> int:
    count = 0
    with local(source) as here, opened(here, label) as (container, stream):
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise BadRecord(
                    "broken_media", f"{label} is truncated or damaged: restore the file"
                )
            count += bool(packet.size and not packet.is_discard)
    return count


def quarter_turns(frame: Any) -> int:
    """How many quarters counter-clockwise the frame must be turned to stand upright."""
    degrees = int(frame.rotation)
    turns = (abs(degrees) + 45) // 90
    return (turns if degrees > 0 else -turns) % 4


@contextmanager
def local(source: Source) -> Iterator[Source]:
    """A source of which much is read: no request for every block of it."""
    if isinstance(source, Extent):
        yield source.read()
    elif isinstance(source, str) and urls.is_url(source) and split_reference(source) is None:
        with ExitStack() as stack:
            try:
                copy = stack.enter_context(cache.local(source))
            except FileNotFoundError:
                copy = source  # `open_file` has the words for it
            except OSError as error:
                raise unreadable(source, error) from error
            yield copy
    else:
        yield source


@contextmanager
def opened(source: Source, label: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; whatever fails is a `BadRecord`."""
    av = _import_av()
    file, nbytes = open_file(source, label)
    with file:
        try:
            check_claims(file, nbytes, label)
            options = {"format_whitelist": ",".join(_FORMATS)}
            with av.open(file, mode="r", container_options=options) as container:
                if not container.streams.video:
                    raise BadRecord("broken_media", f"{label} has no video stream")
                yield container, container.streams.video[0]
        except PackidxError:
            raise
        except Exception as error:  # FFmpeg's errors, and what PyAV makes of odd streams
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            text = f"{label} cannot be read as a video: {shortened(text)}"
            raise BadRecord("broken_media", text) from None


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingExtraError(
            f'reading videos needs PyAV ({error}): run pip install "packidx[video]"'
        ) from error
    if not hasattr(av.VideoStream, "index_entries"):
        raise MissingExtraError(
            f"PyAV {av.__version__} does not tell what a file's index names, as 17 and later do: "
            'run pip install "packidx[video]"'
        )
    return av


def _frame_size(frame: Any) -> tuple[int, int]:
    if isinstance(frame, str | InRoot | bytes | Extent):
        return image_size(frame)
    image = open_image(frame)
    return image.height, image.width
