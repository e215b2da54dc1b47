"""The most valuable pack: an unbounded knapsack in integers, and the packs that attain it.

Pricing in column generation and the exact check of dual prices are the same dynamic program
(Gilmore and Gomory 1961, "A linear programming approach to the cutting-stock problem", section 4).
A length above half the capacity is in a pack at most once, so it stays out of the recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s


@dataclass(frozen=True, slots=True)
class Knapsack:
    """The solved program.

    Attributes:
        lengths: int64 [n], positive, descending; equal ones may differ in value.
        values: int64 [n], what one sample of a length is worth; it may be negative.
        best: int64 [capacity + 1], the most that samples of at most half the capacity are worth
            in a room of c tokens.
    """

    lengths: Int64s
    values: Int64s
    best: Int64s

    @classmethod
    def solve(cls, lengths: Int64s, values: Int64s, capacity: int) -> Knapsack:
        """Solve for every room up to `capacity`, of which no length may be longer."""
        best = np.zeros(capacity + 1, np.int64)
        with_more = np.empty_like(best)
        ascending, worth = lengths[::-1], values[::-1]
        shorter_worth = np.concatenate([[0], np.maximum.accumulate(worth)[:-1]])
        useful = (worth > np.maximum(shorter_worth, 0)) & (2 * ascending <= capacity)
        ascending, worth = ascending[useful], worth[useful]
        last = np.diff(ascending, append=capacity + 1) > 0  # of equal lengths the most valuable
        for length, value in zip(ascending[last].tolist(), worth[last].tolist(), strict=True):
            copies = 1  # 1, 2, 4 … more of the same: every number of copies is a sum of these
            while copies * length <= capacity:
                rooms = capacity + 1 - copies * length
                np.add(best[:rooms], copies * value, out=with_more[:rooms])
                np.maximum(best[-rooms:], with_more[:rooms], out=best[-rooms:])
                copies *= 2
        return cls(lengths, values, best)

    def best_with(self) -> Int64s:
        """int64 [n]: for each length, the value of the best pack of it and samples up to half.

        The largest of these, or `best[-1]` if that is more, is the most that any pack is worth.
        """
        return self.values + self.best[len(self.best) - 1 - self.lengths]

    def packs_with(self, starts: Int64s) -> Int64s:
        """The best packs that hold given lengths, as indices into `lengths`, int64 [s, most].

        `starts`: int64 [s], the index of one length of each pack. A row is padded with -1.
        """
        capacity = len(self.best) - 1
        rooms = capacity - self.lengths[starts]
        half = int(np.searchsorted(-self.lengths, -(capacity // 2), side="left"))
        lengths, values = self.lengths[half:], self.values[half:]
        columns = [starts]
        while (active := np.flatnonzero(self.best[rooms] > 0)).size:
            left = rooms[active, None] - lengths
            attains = self.best[np.maximum(left, 0)] + values == self.best[rooms[active], None]
            pick = (attains & (left >= 0)).argmax(axis=1)  # the longest such sample
            column = np.full(len(starts), -1)
            column[active] = half + pick
            rooms[active] -= lengths[pick]
            columns.append(column)
        return np.stack(columns, axis=1)
