"""A snapshot against its own promises: files, sums, and every sample exactly once.

The tables are read window by window, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq

from packidx.format.terms import PAIR_SIDES
from packidx.index.reader import Index
from packidx.inspect.verify.check import Check, Looker, Window, few, ints, number_of, short
from packidx.inspect.verify.rows import Ids, Limits, Once, Order, Result, Sums
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


class Pairs(Looker):
    """The rejected side of a pair follows the chosen one in its pack."""

    name = "pairs"

    @property
    def are_there(self) -> bool:
        """Whether there was anything to look at."""
        return bool(self.numbers["pairs"] or self.wrong)

    def look(self, window: Window) -> None:
        side = window.samples["pair"].to_numpy()
        first, second = (np.flatnonzero(side == name) for name in PAIR_SIDES)
        self.numbers["pairs"] += len(first)
        follows = np.array_equal(first + 1, second)
        if not follows:
            alone = np.setxor1d(first + 1, second)
            self.wrong.append(
                f"{len(first):,} chosen and {len(second):,} rejected sides, {len(alone):,} without "
                "the other one beside it"
            )
            return
        for name in ("pack_id", "copy", "shard", "row"):
            values = ints(window.samples, name)
            parted = np.flatnonzero(values[first] != values[second])
            self.unless(not len(parted), f"{len(parted):,} pairs have two values of {name}")
        cut = (ints(window.samples, "piece") > 0) | (ints(window.samples, "token_start") > 0)
        parts = int(cut[first].sum() + cut[second].sum())
        self.unless(not parts, f"{parts} sides of pairs are cut")

    def done(self) -> str:
        return f"{self.counted('pairs')}, the sides of each beside each other"
