"""The same records in a file of every kind, by other people's writers; pictures; folders."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Records = Sequence[dict[str, Any]]


def chats(count: int, words: int = 12) -> list[dict[str, Any]]:
    """Conversations that are hard to cut apart: quotes, brackets, newlines, commas, escapes."""
    hard = 'He said: "a, [b] {c}" \\ é漢\n\t</s>\r\n'
    return [
        {
            "id": f"r{number}",
            "messages": [
                {"role": "user", "content": f"<image> {number} " + hard * (number * 7 % words)},
                {"role": "assistant", "content": hard * (number % 3) + "yes"},
            ],
            "images": [f"{number}.png"],
        }
        for number in range(count)
    ]


def _lines(records: Records) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _array(records: Records) -> bytes:
    return json.dumps(records, ensure_ascii=False, indent=2).encode()


def _cells(record: dict[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in record.items()}


def _delimited(records: Records, delimiter: str) -> bytes:
    text = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    if delimiter == "\t":  # which has no quotes
        rows = [names, *([_cells(record).get(name, "") for name in names] for record in records)]
        return "".join("\t".join(row) + "\n" for row in rows).encode()
    writer = csv.DictWriter(text, names, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(_cells(record) for record in records)
    return text.getvalue().encode()


def table_of(records: Records) -> pa.Table:
    """Records as a table with every member's column, not only the first one's."""
    names = dict.fromkeys(name for record in records for name in record)
    return pa.Table.from_pylist([{name: r.get(name) for name in names} for r in records])


def _parquet(records: Records) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table_of(records), sink, row_group_size=37)
    return sink.getvalue()


def _arrow(records: Records) -> bytes:
    table = table_of(records)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=23)
    return sink.getvalue()


def tar_of(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar with these files in it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def _tar(records: Records, folder: Path | None = None) -> bytes:
    """A WebDataset shard, with the images that are files of `folder` as members."""
    members: list[tuple[str, bytes]] = []
    for number, record in enumerate(records):
        key = record.get("id") or record.get("uuid") or str(number)
        for name in dict.fromkeys(record.get("images", ())):
            if folder is not None and (folder / name).is_file():
                members.append((f"{key}.{name}", (folder / name).read_bytes()))
        members.append((f"{key}.json", json.dumps(record).encode()))
    return tar_of(members)


def tar_digest(path: Path | str) -> str:
    """SHA-256 of the names and sizes of a tar's members, and of its records."""
    hasher = hashlib.sha256()
    with tarfile.open(path) as archive:
        for member in archive:
            hasher.update(f"{member.name}\0{member.size}\0".encode())
            if member.name.lower().partition(".")[2] == "json":
                hasher.update(archive.extractfile(member).read())  # type: ignore[union-attr]
    return hasher.hexdigest()


def zstd(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, "zstd", asbytes=True)
    return compressed


_PLAIN: dict[str, Callable[[Records], bytes]] = {
    "jsonl": _lines,
    "json": _array,
    "csv": lambda records: _delimited(records, ","),
    "tsv": lambda records: _delimited(records, "\t"),
}
WRITERS: dict[str, Callable[[Records], bytes]] = {
    **_PLAIN,
    **{f"{k}.gz": lambda r, write=write: gzip.compress(write(r)) for k, write in _PLAIN.items()},
    **{f"{k}.zst": lambda r, write=write: zstd(write(r)) for k, write in _PLAIN.items()},
    "parquet": _parquet,
    "arrow": _arrow,
    "tar": _tar,
}


def write(folder: Path, kind: str, records: Records) -> str:
    """A file of a kind with these records; its path."""
    path = folder / f"data.{kind}"
    path.write_bytes(_tar(records, folder) if kind == "tar" else WRITERS[kind](records))
    return str(path)


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
