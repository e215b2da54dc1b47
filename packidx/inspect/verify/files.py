"""Whether the files of a snapshot are whole."""

from __future__ import annotations

import pyarrow.parquet as pq

from packidx.format.index import TableFile
from packidx.index.reader import Index
from packidx.inspect.verify.check import Check
from packidx.io.copies import StoredFile, content_digest, local_copy, overlapped, sizes


def check_files(index: Index) -> Check:
    """Every file is there with the bytes, rows and SHA-256 that the manifest names."""
    files = index.snapshot.files
    parts = [file.within(index.location) for file in files]
    there = sizes([part.path for part in parts])
    sound = [part.path for part, size in zip(parts, there, strict=True) if size == part.nbytes]
    digests = dict(zip(sound, overlapped(content_digest, sound), strict=True))
    faults = [
        _fault(part, size) or _inner_fault(part, digests[part.path], file)
        for part, size, file in zip(parts, there, files, strict=True)
    ]
    said = "; ".join(filter(None, faults))
    return Check("files", not said, said or f"{len(files)} files as the manifest has them")


def _fault(part: StoredFile, size: int | None) -> str | None:
    if size is None:
        return f"{part.path} is missing"
    if size != part.nbytes:
        return f"{part.path} has {size} bytes, the manifest says {part.nbytes}"
    return None


def _inner_fault(part: StoredFile, digest: str, file: TableFile) -> str | None:
    if digest != part.sha256:
        return f"{part.path} has other content than the manifest's sha256"
    with local_copy(part) as copy:
        if pq.read_metadata(copy).num_rows != file.rows:
            return f"{part.path} has other rows than the manifest's {file.rows}"
    return None
