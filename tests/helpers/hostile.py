"""A corpus whose records refer to everything that a data set might name to do harm."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import lmdb
import numpy as np
from bad_input import chat, claims, pixels, saved
from PIL import Image

Make = Callable[[Path, Path], Any]
"""Given the media root and a folder beside it: a reference, with what it leads to put there."""

COUNTED = None
OUTSIDE, REMOTE = "media_outside_root", "media_remote"
MISSING, BROKEN, LARGE = "missing_media", "broken_media", "media_too_large"


def says(ref: Any) -> Make:
    return lambda root, outside: ref


def linked(name: str, to: str) -> Make:
    """A link in the root to what is named from its parent folder, or absolutely."""

    def make(root: Path, outside: Path) -> str:
        target = root.parent / to
        (root / name.split("/")[0].split("::")[0]).symlink_to(target)
        return name

    return make


def file(name: str, data: bytes) -> Make:
    def make(root: Path, outside: Path) -> str:
        (root / name).write_bytes(data)
        return name

    return make


def hard_link(root: Path, outside: Path) -> str:
    os.link(root / "good.png", root / "hard.png")
    return "hard.png"


def pipe(name: str) -> Make:
    def make(root: Path, outside: Path) -> str:
        os.mkfifo(root / name.split("::")[0])
        return name

    return make


def server(root: Path, outside: Path) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(root)  # an address has a hundred bytes
        try:
            one.bind("socket.png")
        finally:
            os.chdir(here)
    return "socket.png"


def database(path: Path) -> None:
    with lmdb.open(str(path), map_size=1 << 20, subdir=False) as env, env.begin(write=True) as put:
        put.put(b"k", saved(pixels("RGB"), "PNG"))


def folder_with_a_link(root: Path, outside: Path) -> str:
    (root / "inner.lmdb").mkdir()
    (root / "inner.lmdb" / "data.mdb").symlink_to(outside / "out.lmdb")
    return "inner.lmdb::k"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def inserted(data: bytes) -> bytes:
    """A PNG with a chunk behind its header."""
    png = saved(pixels("RGB"), "PNG")
    return png[:33] + data + png[33:]


def exif_of_many_parts() -> bytes:
    jpeg = saved(pixels("RGB"), "JPEG")
    part = b"Exif\0\0" + b"\xff" * 65000
    return jpeg[:2] + (b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part) * 200 + jpeg[2:]


def circular_tiff() -> bytes:
    """Directories that follow each other in a circle."""
    sink = io.BytesIO()
    frames = [pixels("RGB"), pixels("RGB")]
    frames[0].save(sink, "TIFF", save_all=True, append_images=frames[1:])
    data = bytearray(sink.getvalue())
    first = struct.unpack_from("<I", data, 4)[0]
    at = first + 2 + 12 * struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, at, first)
    return bytes(data)


def counts_of_a_tiff() -> bytes:
    """A directory each of whose entries claims four thousand million values."""
    entries = b"".join(struct.pack("<HHII", tag, 4, 0xFFFFFFFF, 8) for tag in (256, 257, 273, 279))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 4) + entries + bytes(4)


def many_frames() -> bytes:
    frames = [Image.new("P", (64, 48), number % 250) for number in range(3000)]
    sink = io.BytesIO()
    frames[0].save(sink, "GIF", save_all=True, append_images=frames[1:])
    return sink.getvalue()


def motion_jpeg(width: int, height: int) -> bytes:
    """An AVI of one frame, whose JPEG claims a size."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="avi") as container:
        stream: Any = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    data = bytearray(sink.getvalue())
    at = data.index(b"\xff\xc0") + 5
    struct.pack_into(">HH", data, at, height, width)
    at = data.index(b"strf") + 12  # of the header, too
    struct.pack_into("<ii", data, at, width, height)
    return bytes(data)


def many_samples() -> bytes:
    """An MP4 of some hundred bytes whose tables claim a million frames of a byte each."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    data = bytearray(sink.getvalue())
    number = 1_000_000
    struct.pack_into(">II", data, data.index(b"stsz") + 8, 1, number)
    struct.pack_into(">I", data, data.index(b"stts") + 12, number)
    struct.pack_into(">I", data, data.index(b"stsc") + 16, number)
    return bytes(data)


def playlist(root: Path, outside: Path) -> str:
    text = f"#EXTM3U\n#EXTINF:1,\n{outside}/secret.mp4\n#EXT-X-ENDLIST\n"
    (root / "list.mp4").write_text(text)
    return "list.mp4"


ENTITY = b"""<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="http://127.0.0.1:9/a.png"/>&x;</svg>"""

IMAGES: dict[str, tuple[Make, str | None]] = {
    "a good one": (says("good.png"), COUNTED),
    "another name of a good one": (hard_link, COUNTED),
    "webhdfs": (says("webhdfs://host:9/a.png"), REMOTE),
    "webhdfs without a host": (says("webhdfs://"), REMOTE),
    "hdfs": (says("hdfs://127.0.0.1:9/a.png"), REMOTE),
    "a store whose package is not here": (says("gs://bucket/a.png"), REMOTE),
    "s3 and nothing": (says("s3://"), REMOTE),
    "s3 without a bucket": (says("s3:///a.png"), REMOTE),
    "s3": (says("s3://bucket/a.png"), REMOTE),
    "S3": (says("S3://bucket/a.png"), REMOTE),
    "s3 as an object": (says({"path": "s3://bucket/a.png"}), REMOTE),
    "s3 with a password": (says("s3://key:secret@bucket/a.png"), REMOTE),
    "the address of a cloud's metadata": (says("http://169.254.169.254/latest/meta-data/"), REMOTE),
    "http": (says("http://127.0.0.1:9/a.png"), REMOTE),
    "https": (says("https://localhost:9/a.png"), REMOTE),
    "ftp": (says("ftp://127.0.0.1:9/a.png"), REMOTE),
    "sftp": (says("sftp://127.0.0.1:9/a.png"), REMOTE),
    "github": (says("github://user:repository@main/a.png"), REMOTE),
    "memory": (says("memory://a.png"), REMOTE),
    "local": (says("local:///etc/passwd"), REMOTE),
    "an archive in an archive": (says("zip://a.png::/etc/passwd"), REMOTE),
    "a chain": (says("simplecache::s3://bucket/a.png"), MISSING),
    "a chain in an URL": (says("simplecache://x::s3://bucket/a.png"), REMOTE),
    "an unknown scheme": (says("nowhere+else://x/a.png"), REMOTE),
    "a scheme of one letter": (says("c://x/a.png"), REMOTE),
    "no scheme": (says("://x/a.png"), MISSING),
    "a drive": (says("C:\\a.png"), MISSING),
    "a share": (says("//host/share/a.png"), OUTSIDE),
    "a share in Windows": (says("\\\\host\\share\\a.png"), MISSING),
    "a file of another machine": (says("file://host/a.png"), REMOTE),
    "a file of an odd machine": (says("file://[::1/a.png"), REMOTE),
    "a file outside": (says("file:///etc/passwd"), OUTSIDE),
    "a file outside, escaped": (says("file://localhost/%65tc/passwd"), OUTSIDE),
    "a file with a zero": (says("file:///a%00.png"), MISSING),
    "data without content": (says("data:image/png;base64"), BROKEN),
    "data, broken": (says("data:image/png;base64,%%%"), BROKEN),
    "data, not ASCII": (says("data:image/png;base64,\u00e9\u00e9"), BROKEN),
    "data, an external entity": (says("data:image/svg+xml," + ENTITY.decode()), BROKEN),
    "a zero byte": (says("a\0.png"), MISSING),
    "a long name": (says("a" * 300 + ".png"), MISSING),
    "a very long name": (says("a" * 100_000), MISSING),
    "a very deep name": (says("a/" * 200_000 + "x"), MISSING),
    "a very long way up": (says("../" * 100_000 + "etc/passwd"), MISSING),
    "home": (says("~/a.png"), MISSING),
    "a variable": (says("$HOME/a.png"), MISSING),
    "a pattern": (says("*.png"), MISSING),
    "a command": (says("$(touch x).png"), MISSING),
    "up": (says("../outside/secret.png"), OUTSIDE),
    "in and up": (says("in/../../outside/secret.png"), OUTSIDE),
    "absolute": (lambda root, outside: f"{outside}/secret.png", OUTSIDE),
    "a neighbour of the root": (lambda root, outside: f"{root}-2/a.png", OUTSIDE),
    "the root": (says("."), BROKEN),
    "a link out": (linked("out.png", "outside/secret.png"), OUTSIDE),
    "a folder that is a link out": (linked("out/secret.png", "outside"), OUTSIDE),
    "a link to itself": (linked("loop.png", "root/loop.png"), BROKEN),
    "a link to a device": (linked("zero.png", "/dev/zero"), OUTSIDE),
    "a link to the environment": (linked("environ.png", "/proc/self/environ"), OUTSIDE),
    "a link to descriptors": (linked("fd/0", "/proc/self/fd"), OUTSIDE),
    "a device": (says("/dev/zero"), OUTSIDE),
    "a descriptor": (says("/proc/self/fd/0"), OUTSIDE),
    "the environment": (says("/proc/self/environ"), OUTSIDE),
    "a pipe": (pipe("pipe.png"), BROKEN),
    "a socket": (server, BROKEN),
    "a key": (says("good.lmdb::k"), COUNTED),
    "a key that is not there": (says("good.lmdb::../../etc/passwd"), MISSING),
    "a key with a zero": (says("good.lmdb::k\0"), MISSING),
    "a long key": (says("good.lmdb::" + "k" * 4000), MISSING),
    "a key of a remote database": (says("s3://bucket/a.lmdb::k"), REMOTE),
    "a database outside": (says("../outside/out.lmdb::k"), OUTSIDE),
    "a database that is a link out": (linked("out.lmdb::k", "outside/out.lmdb"), OUTSIDE),
    "a database that has a link out": (folder_with_a_link, OUTSIDE),
    "a database that is a pipe": (pipe("pipe.lmdb::k"), MISSING),
    "a bomb": (file("bomb.png", claims(60_000, 60_000)), LARGE),
    "a header of large numbers": (file("header.png", claims(2**31 - 1, 2**31 - 1)), LARGE),
    "a long text": (
        file("text.png", inserted(chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 26))))),
        BROKEN,
    ),
    "a colour profile that unfolds": (
        file("icc.png", inserted(chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 26))))),
        BROKEN,
    ),
    "a large EXIF": (file("exif.jpg", exif_of_many_parts()), COUNTED),
    "many frames": (file("frames.gif", many_frames()), COUNTED),
    "a TIFF in a circle": (file("circle.tif", circular_tiff()), COUNTED),
    "a TIFF of large numbers": (file("counts.tif", counts_of_a_tiff()), BROKEN),
    "an external entity": (file("entity.svg", ENTITY), BROKEN),
    "PostScript": (file("run.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), BROKEN),
}

VIDEOS: dict[str, tuple[Make, str | None]] = {
    "a video in a store": (says("s3://bucket/a.mp4"), REMOTE),
    "a video outside": (says("../outside/secret.mp4"), OUTSIDE),
    "a video that is a link out": (linked("out.mp4", "outside/secret.mp4"), OUTSIDE),
    "a video that is a pipe": (pipe("pipe.mp4"), BROKEN),
    "a playlist": (playlist, BROKEN),
    "a script": (file("concat.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n"), BROKEN),
    "frames outside": (says(["good.png", "../outside/secret.png"]), OUTSIDE),
    "a frame in a store": (says(["good.png", "s3://bucket/a.png"]), REMOTE),
    "large frames": (file("large.avi", motion_jpeg(16_000, 16_000)), LARGE),
    "very large frames": (file("larger.avi", motion_jpeg(65_000, 65_000)), BROKEN),
    "many frames that are not there": (file("many.mp4", many_samples()), BROKEN),
}


def make_corpus(place: Path) -> tuple[Path, Path, list[str | None]]:
    """The shard, the media root, and the reason of each record."""
    root, outside = place / "root", place / "outside"
    (root / "in").mkdir(parents=True)
    outside.mkdir()
    png = saved(pixels("RGB"), "PNG")
    (root / "good.png").write_bytes(png)
    (outside / "secret.png").write_bytes(png)
    (outside / "secret.mp4").write_bytes(b"secret")
    database(root / "good.lmdb")
    database(outside / "out.lmdb")
    lines, reasons = [], []
    for kind, cases in (("image", IMAGES), ("video", VIDEOS)):
        for make, reason in cases.values():
            record = chat(f"<{kind}> what?", **{f"{kind}s": [make(root, outside)]})
            lines += [json.dumps(record), json.dumps(chat("<image>", images=["good.png"]))]
            reasons += [reason, COUNTED]
    (place / "all.jsonl").write_text("\n".join(lines))
    return place / "all.jsonl", root, reasons
