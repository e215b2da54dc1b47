"""What the header of a video says, and whether it can be so.

An MP4's table of sizes that are all equal is a number and no table (ISO/IEC 14496-12, 8.7.3.2 and
8.8.8): a file of a thousand bytes may claim a hundred million frames. FFmpeg makes an index of them
all, of some gigabytes, when it opens the file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from packidx.errors import BadRecord, MissingExtraError, PackidxError
from packidx.io import cache, urls
from packidx.io.ranges import Extent
from packidx.io.storage import unreadable
from packidx.records.conversation import MediaInfo
from packidx.records.media.image_files import Source, label_of, open_file
from packidx.records.media.images import MAX_PIXELS, image_size, open_image
from packidx.records.media.inside import InRoot
from packidx.records.media.lmdb_store import split_reference
from packidx.records.media.paths import MediaRoot, resolve, shortened

# Containers of pixels alone: playlists and scripts, which name further files, are none.
_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "flv", "asf", "ogg", "gif"),
    *("h264", "hevc", "ivf", "mxf", "rm", "dv", "nut", "apng", "webp_pipe"),
)
_SOUND_FORMATS = (
    *("wav", "w64", "flac", "mp3", "ogg", "mov", "matroska", "aac", "aiff", "au", "caf", "amr"),
    *("asf", "mpegts", "avi", "flv"),
)

_INNER = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"}
_MOST_BOXES = 1 << 10  # of one level: opening a fragmented file does not read all its fragments
_DEEPEST = 6
_PER_BYTE = 16  # sound of old QuickTime files has several samples in a byte


def remembered_info(read: Callable[..., MediaInfo], ref: str, root: MediaRoot) -> MediaInfo:
    """What `read` says of a reference, remembered until `forget_infos`.

    Raises:
        BadRecord: as `read`; that is remembered, too.
    """
    answer = _answer(read, ref, root)
    if isinstance(answer, MediaInfo):
        return answer
    raise BadRecord(answer.reason, answer.detail)


@functools.lru_cache(maxsize=1 << 17)
def _answer(read: Callable[..., MediaInfo], ref: str, root: MediaRoot) -> MediaInfo | BadRecord:
    try:
        # The reference, not the path, goes into the detail: it is the same on every machine.
        return read(resolve(ref, root), label=repr(shortened(ref)))
    except BadRecord as error:
        return error.with_traceback(None)


def forget_infos() -> None:
    """Files may have changed since."""
    _answer.cache_clear()


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
def opened(source: Source, label: str, kind: str = "video") -> Iterator[tuple[Any, Any]]:
    """The container and its first stream of video or audio; whatever fails is a `BadRecord`."""
    av = _import_av()
    formats = _FORMATS if kind == "video" else _SOUND_FORMATS
    file, nbytes = open_file(source, label)
    with file:
        try:
            _check_claims(file, nbytes, label)
            options = {"format_whitelist": ",".join(formats)}
            with av.open(file, mode="r", container_options=options) as container:
                streams = getattr(container.streams, kind)
                if not streams:
                    raise BadRecord("broken_media", f"{label} has no {kind} stream")
                yield container, streams[0]
        except PackidxError:
            raise
        except Exception as error:  # FFmpeg's errors, and what PyAV makes of odd streams
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            text = f"{label} cannot be read as {'a ' * (kind == 'video')}{kind}: {shortened(text)}"
            raise BadRecord("broken_media", text) from None


def _check_claims(file: IO[bytes], nbytes: int, label: str) -> None:
    """Refuse a file with MP4's boxes whose tables claim what it has no room for.

    The file is then at its beginning.

    Raises:
        BadRecord: ``broken_media``.
        OSError: it cannot be read.
    """
    if file.read(8)[4:] in (b"ftyp", b"moov", b"styp", b"wide", b"free", b"skip", b"mdat"):
        for number in _claims(file, 0, nbytes, 0):
            if number > nbytes * _PER_BYTE:
                text = f"{label} claims {number} frames in {nbytes} bytes"
                raise BadRecord("broken_media", text)
    file.seek(0)


def _claims(file: IO[bytes], start: int, end: int, depth: int) -> Iterator[int]:
    """Numbers of frames in the tables between two offsets."""
    for _ in range(_MOST_BOXES):
        if end - start < 16:
            return
        file.seek(start)
        head = file.read(28)
        size, kind, content = int.from_bytes(head[:4], "big"), head[4:8], head[8:]
        if size == 1:
            size, content = int.from_bytes(head[8:16], "big"), head[16:]
        elif size == 0:
            size = end - start
        if size < len(head) - len(content):
            return  # no box: the decoder says what is wrong
        if kind in _INNER and depth < _DEEPEST:
            body = start + len(head) - len(content)
            yield from _claims(file, body, min(start + size, end), depth + 1)
        elif kind == b"stsz":
            yield int.from_bytes(content[8:12], "big")
        elif kind == b"trun":
            yield int.from_bytes(content[4:8], "big")
        start += size


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingExtraError(
            f"reading videos and compressed audio needs PyAV ({error}): "
            'run pip install "packidx[video]"'
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
