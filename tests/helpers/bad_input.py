"""How the bad input of `test_bad_input.py` and `test_bad_files.py` is made."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
from clips import write_clip
from PIL import Image

Row = dict[str, Any]
Make = Callable[[Path], Any]
"""Given a folder in the media root, where it may put files: a record, or a line's bytes."""


def chat(content: Any = "What is it?", **members: Any) -> Row:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "It is so."}]
    return {"messages": turns, **members}


def dumped(record: Any, old: str = "", new: bytes = b"") -> bytes:
    """A record's line, with a piece of it replaced."""
    line = json.dumps(record).encode()
    assert old.encode() in line
    return line.replace(old.encode(), new) if old else line


def says(record: Any, **members: Any) -> Make:
    return lambda root: {**record, **members} if members else record


def line(data: bytes) -> Make:
    return lambda root: data


def pixels(mode: str, size: tuple[int, int] = (90, 60)) -> Image.Image:
    shape = (size[1], size[0], 3)
    noise = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257)
    return Image.fromarray(noise).convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(pixels("RGB", (190, 60)), kind, exif=exif)


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (90, 60), (number * 40, 0, 0)) for number in range(3)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


def claims(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its pixels do not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def image(data: bytes | None, name: str = "x.png") -> Make:
    """A record with an image file of these bytes; none where there are none."""

    def make(root: Path) -> Row:
        if data is not None:
            (root / name).write_bytes(data)
        return chat("<image> what?", images=[f"{root.name}/{name}"])

    return make


def refers(reference: Callable[[Path], Any] | Any, kind: str = "image") -> Make:
    """A record that refers to a medium."""

    def make(root: Path) -> Row:
        ref = reference(root) if callable(reference) else reference
        return chat(f"<{kind}> what?", **{f"{kind}s": [ref]})

    return make


def made(name: str, how: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(root: Path) -> str:
        how(root / name)
        return f"{root.name}/{name}"

    return make


def link_out(path: Path) -> None:
    path.symlink_to(path.parents[2] / "outside" / "secret.png")


def clip(**options: Any) -> Callable[[Path], object]:
    return lambda path: write_clip(path, **options)


def cut_clip(**options: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_bytes(half(write_clip(path, frames=12, options=options).read_bytes()))

    return make


def no_frames(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()


def nested(levels: int) -> bytes:
    return dumped(chat(extra=0), '"extra": 0', b'"extra": ' + b"[" * levels + b"]" * levels)


WHOLE = saved(pixels("RGB"), "PNG")
