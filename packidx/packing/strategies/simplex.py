"""A revised simplex for the restricted master of column generation, the same on every machine.

A library's solver sums in an order that depends on the processor, and one different last bit picks
another basis, hence another plan. This one keeps the inverse of the basis explicitly (Dantzig 1963,
chapter 9) and works on it by elementwise float64 operations alone, each rounded once as IEEE 754
demands: the same pivots, bit for bit, everywhere. The masters are small (hundreds of rows), so a
pivot takes a fraction of a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Float64s, Int64s

_REDUCED_COST = 1e-7  # a column must promise more than this
_PIVOT = 1e-7  # smaller entries of a column are rounding errors
_REFRESH = 100  # pivots after which solution and prices are computed afresh from the inverse


@dataclass(slots=True)
class Master:
    """min Σ cost·x over the columns added so far, Σ column·x = demand, x ≥ 0.

    Attributes:
        prices: float64 [rows], the dual solution.
        rows, entries, costs: sparse columns: the rows each one touches, with entry 0.0 where a
            column has fewer than others.
        num_pivots: pivots so far.
    """

    _demand: Float64s
    _inverse: Float64s  # transposed: [row, basic column]
    _amounts: Float64s
    _basis: Int64s
    prices: Float64s
    rows: Int64s
    entries: Float64s
    costs: Float64s
    num_pivots: int = 0

    @classmethod
    def starting(cls, demand: Float64s, diagonal: Float64s) -> Master:
        """One that starts from one column per row, ``diagonal[k]`` in row k at cost 1."""
        rows = np.arange(len(demand))
        return cls(
            demand,
            np.diag(1.0 / diagonal),
            demand / diagonal,
            rows.copy(),
            1.0 / diagonal,
            rows[:, None],
            diagonal[:, None].astype(np.float64),
            np.ones(len(demand)),
        )

    def add(self, rows: Int64s, entries: Float64s, costs: Float64s) -> None:
        """Add sparse columns: rows int64 [n, k], entries float64 [n, k], costs float64 [n].

        A row may be named twice in a column: the entries add up.
        """
        width = max(self.rows.shape[1], rows.shape[1])
        self.rows = np.concatenate([_pad_columns(self.rows, width), _pad_columns(rows, width)])
        self.entries = np.concatenate(
            [_pad_columns(self.entries, width), _pad_columns(entries, width)]
        )
        self.costs = np.concatenate([self.costs, costs])

    def solve(self, max_pivots: int) -> None:
        """Pivot to the optimum over the columns, or `max_pivots` times."""
        for _ in range(max_pivots):
            reduced = self.costs.copy()
            for slot in range(self.rows.shape[1]):  # one by one: the order of a sum is its value
                reduced -= self.entries[:, slot] * self.prices[self.rows[:, slot]]
            entering = int(reduced.argmin())
            if reduced[entering] > -_REDUCED_COST:
                return
            if not self._pivot_column(entering, float(reduced[entering])):
                return

    def work_per_pivot(self) -> int:
        """Return the cost of one pivot, in units of about a nanosecond."""
        return len(self._demand) ** 2 + 5 * self.rows.size

    def solution(self) -> tuple[Int64s, Float64s]:
        """The basic columns (as they were added; the first are the starting ones) and amounts."""
        return self._basis, self._amounts

    def _pivot_column(self, entering: int, reduced: float) -> bool:
        direction = np.zeros(len(self._demand))
        for row, entry in zip(
            self.rows[entering].tolist(), self.entries[entering].tolist(), strict=True
        ):
            if entry:
                direction += entry * self._inverse[row]
        usable = direction > _PIVOT
        if not usable.any():  # costs are not negative: only rounding errors bring us here
            return False
        ratios = np.full(len(direction), np.inf)
        np.divide(self._amounts, direction, out=ratios, where=usable)
        smallest = ratios.min()
        ties = np.flatnonzero(ratios <= smallest + 1e-9 * (1.0 + smallest))
        leaving = int(ties[direction[ties].argmax()])  # the largest pivot is the most stable

        amount = self._amounts[leaving] / direction[leaving]
        scaled = self._inverse[:, leaving] / direction[leaving]
        self._amounts -= amount * direction
        self._amounts[leaving] = amount
        np.maximum(self._amounts, 0.0, out=self._amounts)
        self.prices += reduced * scaled
        direction[leaving] -= 1.0
        touched = np.flatnonzero(scaled)
        if 2 * len(touched) < len(scaled):
            self._inverse[touched] -= scaled[touched, None] * direction
        else:
            self._inverse -= scaled[:, None] * direction
        self._basis[leaving] = entering
        self.num_pivots += 1
        if self.num_pivots % _REFRESH == 0:
            self._refresh_solution()
        return True

    def _refresh_solution(self) -> None:
        """Compute the solution and the prices from the inverse, against accumulated errors."""
        amounts = np.zeros_like(self._amounts)
        prices = np.zeros_like(self.prices)
        costs = self.costs[self._basis]
        for row, demand in enumerate(self._demand.tolist()):
            amounts += demand * self._inverse[row]
        for column in range(len(costs)):
            if costs[column]:
                prices += self._inverse[:, column] * costs[column]
        self._amounts = np.maximum(amounts, 0.0)
        self.prices = prices


def _pad_columns(array: NDArray, width: int) -> NDArray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))
