"""A WebDataset folder as people have them: photographs, questions about several, text, frames."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

Sample = tuple[str, list[tuple[str, bytes]], list[str]]
"""Key, members in the tar's order, and names of the members that the record uses, in its order."""


def picture(number: int, width: int = 320, height: int = 240) -> bytes:
    """A JPEG as large as a photograph of that size; every second one is stored turned."""
    numbers = random.Random(number)
    image = Image.frombytes("RGB", (width, height), numbers.randbytes(width * height * 3))
    exif = Image.Exif()
    if number % 2:
        exif[0x0112] = 6
    sink = io.BytesIO()
    image.resize((width, height), Image.Resampling.BOX).save(sink, "JPEG", quality=60, exif=exif)
    return sink.getvalue()


def samples(count: int, first: int = 0) -> Iterator[Sample]:
    """`count` samples of five kinds: keys with folders, members before and behind the record."""
    for number in range(first, first + count):
        key = f"d{number % 3}/s{number:05d}"
        words = "So it is. " * (250 if number % 10 == 9 else number % 9)
        answer = {"role": "assistant", "content": f"It is {number}. {words}"}
        record: dict[str, object] = {"messages": [{"role": "user", "content": "Why?"}, answer]}
        media: dict[str, bytes] = {}
        used: list[str] = []
        kind = number % 5
        if kind == 0:  # named by extension, in the middle of the text
            media = {"jpg": picture(number)}
            record["messages"] = [{"role": "user", "content": "In <image> what is it?"}, answer]
            record["images"] = ["jpg"]
            used = ["jpg"]
        elif kind == 1:  # not named at all, with as many places
            media = {"0.jpg": picture(number), "1.png.jpg": picture(number + 1, 160, 200)}
            record["messages"] = [{"role": "user", "content": "<image> or <image>?"}, answer]
            used = list(media)
        elif kind == 2:  # by full names, not in the tar's order, one of them twice
            media = {"a.jpg": picture(number), "b.jpg": picture(number + 1)}
            used = ["b.jpg", "a.jpg", "b.jpg"]
            record["images"] = [f"{key}.{name}" for name in used]
            asked = "<image>and<image>and<image>?"
            record["messages"] = [{"role": "user", "content": asked}, answer]
        elif kind == 3:  # a video as frames, then an image
            media = {f"{n}.jpg": picture(number + n, 96, 64) for n in range(3)}
            record["messages"] = [{"role": "user", "content": "<video>like<image>?"}, answer]
            record |= {"videos": [["0.jpg", "1.jpg"]], "images": ["2.jpg"]}
            used = list(media)
        files = [(f"{key}.{name}", data) for name, data in media.items()]
        text = [(f"{key}.json", json.dumps(record).encode())]
        members = text + files if number % 2 else files + text
        yield key, members, [f"{key}.{name}" for name in used]


def write_tar(path: Path, content: Iterator[Sample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for _, members, _ in content:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def write_folder(folder: Path, shards: int, per_shard: int, first: int = 0) -> Path:
    """Tars `part-000.tar` … with samples numbered from `first` on."""
    for shard in range(shards):
        numbered = samples(per_shard, first + shard * per_shard)
        write_tar(folder / f"part-{shard:03d}.tar", numbered)
    return folder
