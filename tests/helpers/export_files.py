"""Pictures that exports are made of, and all files of what they make."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image


def picture(number: int, kind: str = "PNG") -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (20 + number % 7, 30), (number % 256, number // 256, 7)).save(sink, kind)
    return sink.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
