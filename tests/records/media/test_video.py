"""What is said of a video without decoding it is what decoding finds; what is broken is named."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import decode, trim, write_clip, write_sound
from PIL import Image

from packidx.errors import BadRecord, MissingExtraError
from packidx.records.conversation import Media, MediaInfo
from packidx.records.media import clips as video_module
from packidx.records.media.clips import Video, video_info
from packidx.records.media.opener import forget_media, frames_in, media_info
from packidx.records.media.paths import MediaRoot

CONTAINERS: list[tuple[str, dict[str, Any]]] = [
    ("h264.mp4", {"frames": 13, "size": (98, 66)}),
    ("mpeg4.mp4", {"frames": 30, "fps": "30000/1001", "codec": "mpeg4"}),
    ("uneven.mp4", {"frames": 6, "times": [0, 1, 2, 5, 9, 14]}),
    ("one.mp4", {"frames": 1, "fps": "25"}),
    ("slow.mov", {"frames": 5, "fps": "15/2", "size": (80, 48)}),
    ("mpeg4.avi", {"frames": 10, "codec": "mpeg4", "fps": "12"}),
    ("h264.mkv", {"frames": 25, "fps": "2997/100"}),
    ("vp9.webm", {"frames": 7, "codec": "libvpx-vp9", "fps": "24"}),
    ("h264.ts", {"frames": 11, "fps": "25"}),
]


@pytest.mark.parametrize(("name", "options"), CONTAINERS)
def test_what_the_header_says_is_what_decoding_gives(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = write_clip(tmp_path / name, **options)
    frames = decode(path)
    info = video_info(str(path))
    assert (info.num_frames, info.height, info.width) == frames.shape[:3]
    assert info.num_frames == options["frames"]
    with av.open(str(path)) as container:
        assert info.fps == float(container.streams.video[0].average_rate)
    assert video_info(path.read_bytes()) == info
    assert info.frame_indices is None and not info.extracted
    video = Video(path.read_bytes() if options["frames"] % 2 else str(path))
    assert video.info == info
    assert np.array_equal(video.frames(range(len(frames))), frames)
    chosen = [len(frames) - 1, 0, len(frames) // 2, 0]
    assert np.array_equal(video.frames(chosen), frames[chosen])
    assert video.frames([]).shape == (0, *frames.shape[1:])


@pytest.mark.parametrize("degrees", [90, 180, 270, -90])
def test_rotation_stands_frames_upright(degrees: int, tmp_path: Path) -> None:
    plain = decode(write_clip(tmp_path / "plain.mp4", frames=4))
    turned = write_clip(tmp_path / "turned.mp4", frames=4, rotation=degrees)
    assert np.array_equal(decode(turned), plain)  # PyAV leaves them lying
    upright = np.rot90(plain, degrees // 90, axes=(1, 2))  # as torchcodec has them
    info = video_info(str(turned))
    assert (info.height, info.width) == upright.shape[1:3]
    assert np.array_equal(Video(str(turned)).frames([0, 1, 2, 3]), upright)


def test_frames_before_an_edit_list_are_not_counted(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mp4", frames=30)
    path = trim(whole, tmp_path / "cut.mp4", 7)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 30
    assert video_info(str(path)).num_frames == 23
    assert np.array_equal(Video(str(path)).frames(range(23)), decode(whole)[7:])


def test_a_header_that_lies_is_found(tmp_path: Path) -> None:
    options = {"movflags": "faststart"}
    path = write_clip(tmp_path / "a.mp4", frames=40, codec="mpeg4", options=options)
    data = without_pictures(path, 25)
    video = Video(data)
    assert video.info.num_frames == 40
    good = len(decode_bytes(data))
    assert 0 < good < 40
    assert video.frames(range(good)).shape[0] == good
    with pytest.raises(BadRecord, match=rf"has {good} frames where its header says 40") as found:
        video.frames([0, 39])
    assert found.value.reason == "broken_media"


def without_pictures(path: Path, first: int) -> bytes:
    """An MPEG-4 clip whose packets from `first` on say that nothing is coded in them."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        entries = list(container.streams.video[0].index_entries)
    for entry in entries[first:]:
        # ISO 14496-2, 6.2.5: a P-VOP's start code, its time (4 bits at 10 Hz), vop_coded = 0.
        data[entry.pos : entry.pos + entry.size] = (
            b"\0\0\1\xb6" + b"\x50\x9f" + bytes(entry.size - 6)
        )
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {"options": {"movflags": "faststart"}}),
        ("a.mp4", {"options": {"movflags": "frag_keyframe+empty_moov"}}),
        ("a.mov", {"options": {"movflags": "faststart"}}),
        ("a.avi", {"codec": "mpeg4"}),
        ("a.flv", {"codec": "flv1"}),
    ],
)
@pytest.mark.parametrize("keep", [0.6, 0.9])
def test_a_cut_file_is_found_by_its_index(
    name: str, options: dict[str, Any], keep: float, tmp_path: Path
) -> None:
    path = write_clip(tmp_path / name, frames=40, **options)
    data = path.read_bytes()
    assert video_info(data).num_frames == 40
    with pytest.raises(BadRecord, match="is truncated") as found:
        video_info(data[: int(len(data) * keep)])
    assert found.value.reason == "broken_media"


def decode_bytes(data: bytes) -> list[Any]:
    with av.open(io.BytesIO(data)) as container:
        frames = []
        try:
            for frame in container.decode(video=0):
                frames.append(frame)
        except av.FFmpegError:
            pass
        return frames


def empty(path: Path) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.start_encoding()
    return path.read_bytes()


def test_broken_files(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", frames=4)
    playlist = f"#EXTM3U\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n".encode()
    script = f"ffconcat version 1.0\nfile '{clip}'\n".encode()
    sound = write_sound(tmp_path / "sound.mp4", samples=1024, codec="aac")
    cases = {
        b"": "is empty",
        b"no video at all" * 50: "cannot be read as a video",
        clip.read_bytes()[:600]: "cannot be read as a video",
        playlist: "cannot be read as a video",
        script: "cannot be read as a video",
        sound.read_bytes(): "has no video stream",
        empty(tmp_path / "empty.mkv"): "cannot be read as a video: End of file",
        empty(tmp_path / "empty.mp4"): "has no video stream",
    }
    for data, text in cases.items():
        with pytest.raises(BadRecord, match=text) as found:
            video_info(data, label="'b.mp4'")
        assert found.value.reason == "broken_media"
        assert found.value.detail.startswith("'b.mp4' ")
        path = tmp_path / "b.mp4"
        path.write_bytes(data)
        with pytest.raises(BadRecord) as again:
            media_info(Media("video", "b.mp4"), MediaRoot(str(tmp_path), True))
        assert again.value.detail == found.value.detail  # the same on every machine
        forget_media()


def test_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    cases = {"none.mp4": "missing_media", "pipe.mp4": "broken_media", ".": "broken_media"}
    cases |= {"../a.mp4": "media_outside_root", "http://x/a.mp4": "media_remote"}
    for ref, reason in cases.items():
        with pytest.raises(BadRecord) as found:
            media_info(Media("video", ref), MediaRoot(str(tmp_path), True))
        assert found.value.reason == reason, ref
    with pytest.raises(BadRecord, match="without a path"):
        media_info(Media("video"), MediaRoot(str(tmp_path), True))


def test_huge_frames_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=2)
    monkeypatch.setattr(video_module, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(BadRecord, match="media_too_large.*96x64"):
        video_info(str(path))


def test_what_a_record_states_goes_first(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", frames=12)
    root = str(tmp_path)
    found = media_info(Media("video", "a.mp4"), MediaRoot(root, True))
    assert found == MediaInfo(64, 96, 12, 10.0)
    stated = Media("video", "a.mp4", {"fps": 4.0, "frame_indices": (3, 1)})
    assert media_info(stated, MediaRoot(root, True)) == MediaInfo(64, 96, 12, 4.0, (3, 1))
    # Everything stated: the file is not looked at, but its place is.
    complete = {"height": 48, "width": 64, "num_frames": 99, "fps": 25.0}
    info = media_info(Media("video", "none.mp4", complete), MediaRoot(root, True))
    assert info == MediaInfo(48, 64, 99, 25.0)
    with pytest.raises(BadRecord, match="media_outside_root"):
        media_info(Media("video", "../none.mp4", complete), MediaRoot(root, True))
    # A video that is opened says itself what it is.
    opened = Video(str(tmp_path / "a.mp4"))
    assert media_info(Media("video", opened), MediaRoot("", False)) == found
    assert media_info(Media("video", opened, {"fps": 5.0}), MediaRoot("", False)).fps == 5.0


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        ({"frame_indices": (0, 12)}, "frame 12 is asked for of a video of 12 frames"),
        ({"frame_indices": (-1,)}, "frame -1 is asked for"),
    ],
)
def test_statements_that_cannot_be(stated: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", frames=12)
    with pytest.raises(BadRecord, match=re.escape(text)):
        media_info(Media("video", "a.mp4", stated), MediaRoot(str(tmp_path), True))


def pictures(tmp_path: Path, sizes: list[tuple[int, int]]) -> list[str]:
    names = []
    for number, size in enumerate(sizes):
        names.append(f"{number}.png")
        Image.new("RGB", size, (number, 2 * number, 99)).save(tmp_path / names[-1])
    return names


def test_extracted_frames(tmp_path: Path) -> None:
    names = pictures(tmp_path, [(40, 30)] * 5)
    root = str(tmp_path)
    want = MediaInfo(30, 40, 5, extracted=True)
    assert media_info(Media("video", names), MediaRoot(root, True)) == want
    facts = {"fps": 2.0, "frame_indices": (0, 10, 20, 30, 40), "num_frames": 7}
    timed = Media("video", names, facts)
    info = media_info(timed, MediaRoot(root, True))
    assert info == MediaInfo(30, 40, 5, 2.0, (0, 10, 20, 30, 40), extracted=True)
    with pytest.raises(BadRecord, match="has 2, the video has 5"):
        media_info(Media("video", names, {"frame_indices": (0, 1)}), MediaRoot(root, True))
    data = (tmp_path / names[3]).read_bytes()
    mixed = [tmp_path / names[0], data, Image.open(tmp_path / names[4])]
    video = Video([str(mixed[0]), *mixed[1:]])
    assert video.info == MediaInfo(30, 40, 3, extracted=True)
    assert media_info(Media("video", video), MediaRoot("", False)) == video.info
    assert video.frames([2, 0, 1])[:, 0, 0].tolist() == [[4, 8, 99], [0, 0, 99], [3, 6, 99]]
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    assert media_info(Media("video", [uri, names[0]]), MediaRoot(root, True)).num_frames == 2
    with pytest.raises(BadRecord, match="has no frame 5"):
        Video([str(mixed[0])] * 5).frames([5])


def test_extracted_frames_that_do_not_do(tmp_path: Path) -> None:
    names = pictures(tmp_path, [(40, 30), (40, 30), (30, 40)])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 40)).save(tmp_path / "turned.jpg", exif=exif)
    root = str(tmp_path)
    upright = Media("video", [names[0], "turned.jpg"])
    assert media_info(upright, MediaRoot(root, True)).height == 30
    for refs, text in (
        (names, "frame 0 of a video has 40x30 pixels, frame 2 has 30x40"),
        ([], "a video of no frames"),
        ([names[0], "none.png"], "missing_media"),
        ([names[0], "../a.png"], "media_outside_root"),
    ):
        with pytest.raises(BadRecord, match=text):
            media_info(Media("video", refs), MediaRoot(root, True))
    sized = Media("video", ["../a.png"], {"height": 4, "width": 4})
    with pytest.raises(BadRecord, match="media_outside_root"):
        media_info(sized, MediaRoot(root, True))


def test_pyav_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=2)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r'pip install "packidx\[video\]"'):
        video_info(str(path))
    complete = {"height": 48, "width": 64, "num_frames": 99, "fps": 25.0}
    assert media_info(Media("video", "a.mp4", complete), MediaRoot(str(tmp_path), True))


def test_a_folder_is_a_videos_frames_by_their_numbers(tmp_path: Path) -> None:
    root = MediaRoot(str(tmp_path), True, ())
    (tmp_path / "clip").mkdir()
    for name in ("f10.png", "f2.png", "f1.png", "notes.txt"):
        Image.new("RGB", (64, 48)).save(tmp_path / "clip" / name, "PNG")
    named = [f"clip/{name}" for name in ("f1.png", "f2.png", "f10.png")]
    assert frames_in("clip", root) == named
    info = media_info(Media("video", "clip"), root)
    assert (info.num_frames, info.height, info.width, info.extracted) == (3, 48, 64, True)
    (tmp_path / "clip" / "f3.png").symlink_to("/etc/hostname")
    forget_media()
    with pytest.raises(BadRecord, match="media_outside_root"):
        media_info(Media("video", "clip"), root)
    assert frames_in("clip/f1.png", root) is None
    (tmp_path / "clip" / "f3.png").unlink()
    Image.new("RGB", (64, 48)).save(tmp_path / "clip" / "cover.png")
    with pytest.raises(BadRecord, match="differ in their numbers alone"):
        frames_in("clip", root)
