"""A snapshot against its own promises: files, sums, and every sample exactly once.

The tables are read window by window, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq

from packidx.format.index import TableFile
from packidx.index.reader import Index
from packidx.inspect.verify.check import Check, Window
from packidx.inspect.verify.pairs import Pairs
from packidx.inspect.verify.rows import Ids, Limits, Order, Sums
from packidx.inspect.verify.totals import Once, Result
from packidx.io.copies import StoredFile, content_digest, local_copy, overlapped, sizes


def verify_snapshot(index: Index) -> Iterator[Check]:
    """Check one snapshot; later checks are left out when its files cannot be read."""
    files = check_files(index)
    yield files
    if not files.ok:
        return
    pairs = Pairs(index)
    checks = [*(kind(index) for kind in (Ids, Order, Sums, Limits, Once, Result)), pairs]
    for window in _windows(index):
        for check in checks:
            check.look(window)
    for check in checks if pairs.are_there else checks[:-1]:
        yield check.verdict()


def _windows(index: Index) -> Iterator[Window]:
    first_row = 0
    for number, stated in enumerate(index.snapshot.result.windows):
        packs, samples, dropped = (
            index.window(name, number) for name in ("packs", "samples", "dropped")
        )
        yield Window(number, stated, first_row, packs, samples, dropped)
        first_row += samples.num_rows


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
