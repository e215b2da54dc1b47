"""A snapshot against its own promises: files, sums, and every sample exactly once.

The tables are read window by window, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq

from packidx.index.reader import Index
from packidx.inspect.verify.check import Check, Window, few, number_of, short
from packidx.inspect.verify.pairs import Pairs
from packidx.inspect.verify.rows import Ids, Limits, Order, Sums
from packidx.inspect.verify.totals import Once, Result
from packidx.io.copies import Content, StoredFile, content_of, local_copy, overlapped, sizes


def verify_snapshot(index: Index) -> Iterator[Check]:
    """Check one snapshot; later checks are left out when its files cannot be read."""
    files = check_files(index)
    yield files
    if not files.ok:
        return
    pairs = Pairs(index)
    checks = [*(kind(index) for kind in (Ids, Order, Sums, Limits, Once, Result)), pairs]
    for window in windows(index):
        for check in checks:
            check.look(window)
    for check in checks if pairs.are_there else checks[:-1]:
        yield check.verdict()


def windows(index: Index) -> Iterator[Window]:
    """The windows of a snapshot, one at a time."""
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
    contents = dict(zip(sound, overlapped(content_of, sound), strict=True))
    faults, rows = [], 0
    for part, size, file in zip(parts, there, files, strict=True):
        fault = size_fault(part, size) or digest_fault(part, contents[part.path])
        if fault is None:
            actual = _rows(part)
            rows += actual
            if actual != file.rows:
                fault = f"{part.path} has {actual:,} rows, the manifest says {file.rows:,}"
        faults.append(fault)
    hashed = sum(content.nbytes for content in contents.values())
    numbers = {"files": len(files), "bytes_hashed": hashed, "rows": rows}
    listed = ", ".join([number_of(len(files), "files"), f"{hashed:,} bytes hashed"])
    detail = few(filter(None, faults)) or f"{listed}, {number_of(rows, 'rows')}"
    return Check("files", not any(faults), detail, numbers)


def size_fault(part: StoredFile, size: int | None) -> str | None:
    """What is wrong with a file of `size` bytes, None for one that is not there."""
    if size is None:
        return f"{part.path} is missing"
    if size != part.nbytes:
        return f"{part.path} has {size:,} bytes, the manifest says {part.nbytes:,}"
    return None


def digest_fault(part: StoredFile, content: Content) -> str | None:
    """What is wrong with a file of the right size."""
    if content.sha256 == part.sha256 or part.sha256 is None:
        return None
    return (
        f"{part.path} has SHA-256 {short(content.sha256)}…, the manifest says {short(part.sha256)}…"
    )


def _rows(part: StoredFile) -> int:
    with local_copy(part) as copy:
        rows: int = pq.read_metadata(copy).num_rows
    return rows
