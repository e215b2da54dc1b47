"""Whether the files of a snapshot are whole."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from packidx.index.reader import Index
from packidx.inspect.verify.check import Check
from packidx.io import urls
from packidx.io.copies import Part, content_digest, local_copy, overlapped, sizes


def check_files(index: Index) -> Check:
    """Every file is there with the bytes, rows and SHA-256 that the manifest names."""
    parts = index.manifest["files"]
    paths = [urls.join(index.place, part["path"]) for part in parts]
    wrong = [
        _fault(path, size, part)
        for path, size, part in zip(paths, sizes(paths), parts, strict=True)
    ]
    sound = [path for path, fault in zip(paths, wrong, strict=True) if fault is None]
    digests = dict(zip(sound, overlapped(content_digest, sound), strict=True))
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        if path in digests:
            wrong[number] = _inner_fault(path, digests[path], part)
    done = f"{len(parts)} files as the manifest has them"
    said = "; ".join(fault for fault in wrong if fault is not None)
    return Check("files", not said, said or done)


def _fault(path: str, size: int | None, part: dict[str, Any]) -> str | None:
    if size is None:
        return f"{path} is missing"
    if size != part["bytes"]:
        return f"{path} has {size} bytes, the manifest says {part['bytes']}"
    return None


def _inner_fault(path: str, found: str, part: dict[str, Any]) -> str | None:
    if found != part["sha256"]:
        return f"{path} has other content than the manifest's sha256"
    with local_copy(Part(path, part["bytes"], part["sha256"])) as copy:
        if pq.read_metadata(copy).num_rows != part["rows"]:
            return f"{path} has other rows than the manifest's {part['rows']}"
    return None
