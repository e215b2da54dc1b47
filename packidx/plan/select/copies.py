"""The copies of rows that are packed, without those that training has had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s
from packidx.lengths.rows import LengthsRows
from packidx.plan.select.pieces import SIDES, Stretches, expand_ranges, joined_columns, keys, select

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Consumed:
    """All that training has had already, each in order of its first column.

    Attributes:
        trained: ``sample_id``, ``copy``, and tokens ``start`` … ``stop`` - 1 that it has had.
        left: the same, and ``first_piece``, of tokens that it has not had of copies that it has
            begun.
    """

    trained: pl.DataFrame
    left: pl.DataFrame


@dataclass
class Copies:
    """The number of times that each row is packed.

    Attributes:
        number: int64 [n], or None where each is packed once.
        is_partial: bool [n]: training has had a part of one of its copies.
        taken: int64 [m], `keys` of rows and copies that training has had, whole or in part,
            ascending.
        left: what is left of those that it has begun.
        trained: int64 [m] each, ranges of tokens that it has had: rows, the first token, and the
            one after the last.
    """

    number: Int64s | None
    is_partial: Bools
    taken: Int64s = field(default_factory=lambda: _NONE)
    left: Stretches = field(default_factory=Stretches.none)
    trained: tuple[Int64s, Int64s, Int64s] = (_NONE, _NONE, _NONE)

    def take_off(self, rows: LengthsRows, consumed: Consumed) -> Bools:
        """Take what training has had off; return the rows of which it has had all copies."""
        row, copy, start, stop = in_rows(consumed.trained, rows)
        self.trained = row, start, stop
        self.taken = np.unique(keys(row, copy))
        left = Stretches(*in_rows(consumed.left, rows))
        whole = np.setdiff1d(self.taken, keys(left.row, left.copy))
        before = np.ones(rows.num_rows, np.int64) if self.number is None else self.number
        number = before - np.bincount(whole >> 32, minlength=rows.num_rows)
        self.number = np.maximum(number, 0)
        self.left = select(left, self.number[left.row] > 0)
        self.is_partial[self.left.row] = True
        is_consumed: Bools = (self.number == 0) & (before > 0)
        return is_consumed

    def of(self, rows: Int32s) -> tuple[Int32s, Int32s | None]:
        """Each of `rows`, ascending ones of which nothing is begun, as often as it is packed, and
        the copies' numbers; None where all are 0."""
        if self.number is None:
            return rows, None
        times = self.number[rows]
        copies = self._lowest_free(rows.astype(np.int64), times)
        return np.repeat(rows, times), copies.astype(np.int32)

    def stretches(self, rows: Int64s, weight: Int32s) -> Stretches:
        """Return what is to be cut of `rows`, ascending ones of `weight` tokens: the lowest copies
        that training has not had, begun ones first."""
        times = np.ones(len(rows), np.int64) if self.number is None else self.number[rows]
        of_left = keys(self.left.row, self.left.copy)
        begun = np.unique(of_left)
        first, last = (np.searchsorted(begun >> 32, rows, side) for side in SIDES)
        chosen, _ = expand_ranges(first, np.minimum(last, first + times))
        going_on = select(self.left, np.isin(of_left, begun[chosen]))
        times = np.maximum(times - (last - first), 0)
        fresh = np.repeat(rows, times)
        zeros = np.zeros(len(fresh), np.int64)
        stop = weight[fresh].astype(np.int64)
        untouched = Stretches(fresh, self._lowest_free(rows, times), zeros, stop, zeros)
        both = joined_columns([going_on, untouched])
        return select(both, np.lexsort((both.start, both.copy, both.row)))

    def _lowest_free(self, rows: Int64s, times: Int64s) -> Int64s:
        """For each of `rows` the lowest `times` copy numbers that are not taken, one after the
        other.

        The i-th taken number c of a row has c - i free ones below it: the j-th free number is j and
        as many more as there are taken ones with c - i <= j.
        """
        owner = np.repeat(np.arange(len(rows)), times)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(times) - times, times)
        if not len(self.taken):
            return nth
        row, copy = self.taken >> 32, self.taken & 0xFFFFFFFF
        free = copy - np.arange(len(row)) + np.searchsorted(row, row)
        upto = np.searchsorted(keys(row, free), keys(rows[owner], nth), "right")
        lowest: Int64s = nth + upto - np.searchsorted(row, rows)[owner]
        return lowest


def in_rows(frame: pl.DataFrame, rows: LengthsRows) -> list[NDArray[Any]]:
    """The columns of what `frame`, in order of ``sample_id``, has of the samples `rows`, int64:
    the number of the row in place of the sample's id."""
    own, ids = rows.sample_id, frame.get_column("sample_id").to_numpy()
    if not len(own):
        return [_NONE] * frame.width
    part = slice(np.searchsorted(ids, own[0]), np.searchsorted(ids, own[-1], "right"))
    row = np.searchsorted(own, ids[part])
    mine = own[row] == ids[part]
    columns = (frame.get_column(name).to_numpy()[part] for name in frame.columns[1:])
    return [row[mine], *(values[mine].astype(np.int64) for values in columns)]
