"""A snapshot against its own promises: files, sums, and every sample exactly once.

The tables are read window by window, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from packidx.index.reader import Index
from packidx.inspect.verify.check import Check, Window
from packidx.inspect.verify.files import check_files
from packidx.inspect.verify.rows import Ids, Limits, Order, Sums
from packidx.inspect.verify.totals import Once, Result


def verify_snapshot(index: Index) -> Iterator[Check]:
    """Check one snapshot; later checks are left out when its files cannot be read."""
    files = check_files(index)
    yield files
    if not files.ok:
        return
    checks = [
        Ids(index),
        Order(index),
        Sums(index),
        Limits(index),
        Once(index),
        Result(index),
    ]
    for window in _windows(index):
        for check in checks:
            check.look(window)
    for check in checks:
        yield check.verdict()


def _windows(index: Index) -> Iterator[Window]:
    first_row = 0
    for number, stated in enumerate(index.snapshot.result.windows):
        packs, samples, dropped = (
            index.window(name, number) for name in ("packs", "samples", "dropped")
        )
        yield Window(number, stated, first_row, packs, samples, dropped)
        first_row += samples.num_rows
