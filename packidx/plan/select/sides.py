"""Preference pairs: two rows of the lengths table that are one item until the tables are written.

The item stands at the row of the chosen side; the rejected one is the next row. So whatever
chooses, draws or packs items cannot part the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.lengths.rows import LengthsRows
from packidx.plan.options.resolved import ResolvedOptions


@dataclass(frozen=True, slots=True)
class Folded:
    """Items some of which are pairs, arrays ``[n]``.

    Attributes:
        is_pair: bool.
        length, padded: int32, of the item's first sample: of a pair, the chosen side.
    """

    is_pair: Bools
    length: Int32s
    padded: Int32s

    def select(self, keep: Bools) -> Folded:
        """Those of the items that `keep` says."""
        return Folded(self.is_pair[keep], self.length[keep], self.padded[keep])

    def first_samples(self) -> Int64s:
        """The number of each item's first sample, int64 [n], where all samples are counted."""
        sizes = 1 + self.is_pair.astype(np.int64)
        return np.cumsum(sizes) - sizes

    def samples_of(self, items: Ints) -> tuple[Int64s, Int64s]:
        """The numbers of the samples of `items`, one item after the other, and how many each has:
        both int64."""
        sizes = 1 + self.is_pair[items].astype(np.int64)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        second = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
        return self.first_samples()[items][owner] + second, sizes


def fold(
    rows: LengthsRows,
    row: Int32s,
    num_whole: int,
    lengths: tuple[Int32s, Int32s],
    weight: Int32s,
    options: ResolvedOptions,
) -> tuple[Int32s, Int32s, Folded]:
    """Length and padded length of items with the rejected sides of pairs, and what they were made
    of.

    Args:
        row: int32 [n], rows of the items; of pairs, those of the chosen sides.
        num_whole: as of `Items`.
        lengths: length and padded length of those rows or pieces, int32 [n].
        weight: int32 [rows], tokens of every row.
    """
    is_chosen = np.zeros(rows.num_rows, bool)
    is_chosen[rows.chosen] = True
    is_pair = is_chosen[row]
    is_pair[num_whole:] = False
    rejected = np.where(is_pair, weight[np.minimum(row + 1, rows.num_rows - 1)], 0)
    rejected = rejected.astype(np.int32)
    length, padded = lengths
    sums = length + rejected
    plain = padded is length
    both = sums if plain else padded + options.padded(rejected)
    return sums, both, Folded(is_pair, length, padded)


def of_pairs(rows: LengthsRows, values: Ints) -> Ints:
    """`values` of every row, [n]; of both sides of a pair the sum over the two."""
    if not len(rows.chosen):
        return values
    sums = values.copy()
    sums[rows.chosen] += values[rows.chosen + 1]
    sums[rows.chosen + 1] = sums[rows.chosen]
    return sums


def paired_rows(rows: LengthsRows) -> Bools:
    """bool [rows], which are a side of a pair."""
    paired = np.zeros(rows.num_rows, bool)
    paired[rows.chosen] = paired[rows.chosen + 1] = True
    return paired
