"""Tokens that the plan was to pack, that no pack has and that training has not had."""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int32s, Int64s
from packidx.plan.select.eligible import Copies
from packidx.plan.select.pairs import changes

Ranges = tuple[Int64s, Int64s, Int64s]
"""Rows, and the first token and the one after the last of a range in each."""


def uncovered(rows: Int64s, weight: Int32s, ranges: list[Ranges]) -> Int64s:
    """Tokens of each of `rows` that are in none of `ranges`, int64 [rows].

    Args:
        rows: ascending.
        weight: int32 [all rows], tokens of each.
        ranges: of these rows and of others, in any order; they may overlap.
    """
    row, start, stop = (np.concatenate(part).astype(np.int64) for part in zip(*ranges, strict=True))
    mine = np.isin(row, rows)
    row, start, stop = row[mine], start[mine], stop[mine]
    order = np.lexsort((start, row))
    row, begin, end = row[order], start[order], stop[order]
    # Places in the table as one number each; no range reaches into the next row.
    begin, end = row << 32 | begin, row << 32 | end
    before = np.maximum.accumulate(np.r_[np.int64(0), end])[:-1]
    fresh = np.maximum(end - np.maximum(begin, before), 0)
    covered = np.zeros(len(rows), np.int64)
    np.add.at(covered, np.searchsorted(rows, row), fresh)
    return weight[rows] - covered


def trained(copies: Copies, weight: Int32s) -> list[Ranges]:
    """The tokens that training has had."""
    row, stop = copies.trained
    left = copies.left
    begins = changes(left.row, left.copy)
    before = np.where(begins, 0, np.r_[np.int64(0), left.stop][:-1])
    last = np.r_[begins[1:], np.ones(min(1, len(begins)), bool)]
    return [
        (row, np.zeros_like(row), np.minimum(stop, weight[row])),
        (left.row, before, left.start),
        (left.row[last], left.stop[last], weight[left.row[last]].astype(np.int64)),
    ]


def shortened(copies: Copies, weight: Int32s) -> Int64s:
    """Rows of which training has had a copy that was truncated."""
    row, stop = copies.trained
    return row[stop < weight[row]]
