"""Tars with members that hold no media: their samples are rejected, the others are counted."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from packidx import estimate_lengths

GOOD = json.dumps(
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So."}]}
).encode()
Add = Callable[[tarfile.TarFile], None]


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (90, 60)).save(buffer, "PNG")
    return buffer.getvalue()


def file(archive: tarfile.TarFile, name: str, data: bytes, **headers: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = len(data), headers
    archive.addfile(info, io.BytesIO(data))


def member(name: str, kind: bytes, target: str = "") -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)

    return add


def table(folder: Path) -> list[dict[str, Any]]:
    parts = sorted(folder.glob("part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def rows_of(path: Path) -> dict[str, tuple[str | None, str | None]]:
    """Key → reason and detail, as the table has them, in the tar's order."""
    estimate_lengths(str(path), path.with_suffix(".lengths"), workers=1)
    rows = table(path.with_suffix(".lengths"))
    return {row["key"]: (row["reason"], row["detail"]) for row in rows}


NO_FILES = {
    "hard link": member("b.png", tarfile.LNKTYPE, "a.png"),
    "symbolic link": member("b.png", tarfile.SYMTYPE, "/etc/passwd"),
    "device": member("b.png", tarfile.CHRTYPE),
    "pipe": member("b.png", tarfile.FIFOTYPE),
    "long link": member("b.png", tarfile.LNKTYPE, "x" * 300),
}


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_member_that_is_no_file_costs_its_sample_alone(
    tmp_path: Path, name: str, form: int
) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=form) as archive:
        file(archive, "a.json", GOOD)
        file(archive, "a.png", picture())
        file(archive, "b.json", GOOD)
        NO_FILES[name](archive)
        member("folder.d", tarfile.DIRTYPE)(archive)
        file(archive, "c.json", GOOD)
    rows = rows_of(path)
    assert list(rows) == ["a", "b", "c"]
    assert rows["a"][0] is rows["c"][0] is None
    assert rows["b"][0] == "broken_media"


def test_names_that_climb_are_names_in_the_tar(tmp_path: Path) -> None:
    record = {**json.loads(GOOD), "images": ["../../secret.png"]}
    record["messages"] = [
        {"role": "user", "content": "<image>Hi"},
        {"role": "assistant", "content": "So."},
    ]
    (tmp_path / "secret.png").write_bytes(picture())
    (tmp_path / "in" / "deep").mkdir(parents=True)
    path = tmp_path / "in" / "deep" / "x.tar"
    with tarfile.open(path, "w") as archive:
        file(archive, "../../up.json", GOOD)
        file(archive, "/etc/root.json", GOOD)
        file(archive, "lost.json", json.dumps(record).encode())
        file(archive, "in/../a.json", GOOD)
    rows = rows_of(path)
    assert [rows[key][0] for key in ("../../up", "/etc/root", "in/../a")] == [None] * 3
    assert rows["lost"][0] == "media_outside_root"
