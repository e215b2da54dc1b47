"""Pack the samples of one step, here and now: for RL loops and dynamic batches, without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.packing.counts import Histogram, lower_bound
from packidx.packing.strategies.in_order import window_fit


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Samples dealt to micro-batches and ranks.

    Attributes:
        ranks: of each rank, its micro-batches in turn, each the numbers of its samples, ascending.
            Every rank has as many, and those at one turn cost about the same.
        bound: a lower bound on micro-batches, of all ranks together, and the proof's name.
        costs: float64 [ranks, micro-batches], Σ cost.
    """

    ranks: list[list[list[int]]]
    bound: tuple[int, str]
    costs: npt.NDArray[np.float64]

    @property
    def balance(self) -> float:
        """The most expensive micro-batch, in times of the mean one."""
        return float(self.costs.max() / self.costs.mean()) if self.costs.any() else 1.0


def balance_micro_batches(
    lengths: Sequence[int] | npt.NDArray[Any],
    capacity: int,
    *,
    ranks: int = 1,
    at_least: int = 1,
    cost: Sequence[float] | npt.NDArray[Any] | None = None,
) -> MicroBatches:
    """Deal samples to micro-batches of at most `capacity` tokens, as many on every rank, no more
    of them than best fit decreasing needs for that, and of costs as equal as can be.

    Args:
        lengths: int [n], tokens of each sample, 1 to capacity.
        capacity: tokens that a micro-batch may hold.
        ranks: data-parallel ranks, each of which gets as many micro-batches.
        at_least: micro-batches in all. The fewest are nearly full, so one with a long sample costs
            more than the others, where cost is not tokens alone; a few more balance better.
        cost: float [n], at least 0, of each sample; its length by default.

    Raises:
        OptionError: a sample has no room, there are too few of them for the ranks, or the arguments
            do not go together.
    """
    tokens = np.asarray(lengths, np.int64)
    price = tokens.astype(np.float64) if cost is None else np.asarray(cost, np.float64)
    if tokens.ndim != 1 or price.shape != tokens.shape or not np.all(price >= 0):
        raise OptionError("lengths and cost are one number for each sample, none below 0")
    if not np.array_equal(tokens, lengths) or not np.all(np.isfinite(price)):
        raise OptionError("a length is not a whole number, or a cost is infinite: count tokens")
    if ranks < 1:
        raise OptionError(f"ranks is {ranks}: it must be at least 1")
    least = max(ranks, -(-at_least // ranks) * ranks)
    if len(tokens) < least:
        raise OptionError(
            f"{len(tokens)} samples are too few for {least} micro-batches: each needs one"
        )
    if int(tokens.min()) < 1:
        raise OptionError(f"sample {int(tokens.argmin())} has no token: leave it out")
    if int(tokens.max()) > capacity:
        worst = int(tokens.argmax())
        raise OptionError(
            f"sample {worst} has {int(tokens[worst])} tokens, and a micro-batch holds {capacity}:"
            " raise the capacity, or leave it out"
        )
    bound = lower_bound(Histogram.of(tokens), capacity)
    pack = _pack_samples(tokens, price, capacity, ranks, max(bound[0], at_least))
    sums = np.bincount(pack, price, int(pack.max()) + 1).astype(np.float64)
    order = np.argsort(-sums, kind="stable").reshape(-1, ranks)
    order[1::2] = order[1::2, ::-1]  # so that ranks get as much in all
    members: list[list[int]] = [[] for _ in sums]
    for sample, own in enumerate(pack.tolist()):
        members[own].append(sample)
    dealt = [[members[own] for own in column] for column in order.T.tolist()]
    return MicroBatches(dealt, bound, sums[order.T])


def _pack_samples(size: Int64s, value: Any, capacity: int, ranks: int, least: int) -> Int64s:
    """The micro-batch of each sample: the fewest of which one of three ways makes a plan."""
    best = window_fit(size[:, None], np.array([capacity]), len(size))
    least = -(-least // ranks) * ranks
    most = min(-(-max(int(best.max()) + 1, least) // ranks), len(size) // ranks) * ranks
    for number in range(least, most + 1, ranks):
        pack = _deal_by_differences(value, number)
        if np.bincount(pack, size, number).max() <= capacity and len(np.unique(pack)) == number:
            return pack
        dealt = _deal_by_cost(size, value, capacity, number)
        if dealt is not None:
            return dealt
    if most <= int(best.max()):
        raise OptionError(
            f"{len(size)} samples make {int(best.max()) + 1} micro-batches, which are no"
            f" multiple of {ranks} ranks, and there is nothing to fill more with: raise the"
            " capacity or leave some out"
        )
    for own in range(int(best.max()) + 1, most):  # each takes the costliest of the fullest
        inside = np.flatnonzero(best == np.bincount(best).argmax())
        best[inside[value[inside].argmax()]] = own
    return best


def _deal_by_cost(size: Int64s, value: Any, capacity: int, number: int) -> Int64s | None:
    """The costliest first, each to the cheapest of `number` micro-batches that has room, or None:
    longest processing time (Graham, 1969), with room."""
    if number > len(size):
        return None
    heap: list[tuple[float, int, int]] = [(0.0, 0, own) for own in range(number)]
    heapify(heap)
    pack = np.empty(len(size), np.int64)
    order = np.lexsort((-size, -value))
    for unit, tokens, worth in zip(
        order.tolist(), size[order].tolist(), value[order].tolist(), strict=True
    ):
        full = []
        while heap and heap[0][1] + tokens > capacity:
            full.append(heappop(heap))
        if not heap:
            return None
        spent, held, own = heappop(heap)
        pack[unit] = own
        heappush(heap, (spent + worth, held + tokens, own))
        for each in full:
            heappush(heap, each)
    return pack


def _deal_by_differences(value: Any, number: int) -> Int64s:
    """Units dealt to `number` micro-batches of costs as equal as differencing makes them.

    Karmarkar and Karp (1982, "The differencing method of set partitioning"): each unit begins as a
    partition of its own, the two of largest differences are put together, the costly sets of one
    with the cheap ones of the other, until one is left.
    """
    joined: list[tuple[Int64s, Int64s]] = []  # sets that became one
    sums = np.zeros((len(value), number))
    sums[:, 0] = value
    sets = np.full((len(value), number), -1)
    sets[:, 0] = np.arange(len(value))
    heap = [(-worth, unit) for unit, worth in enumerate(value.tolist())]
    heapify(heap)
    while len(heap) > 1:
        one, two = heappop(heap)[1], heappop(heap)[1]
        total, other = sums[one] + sums[two][::-1], sets[two][::-1]
        own = sets[one]
        both = (own >= 0) & (other >= 0)
        joined.append((other[both], own[both]))
        merged = np.maximum(own, np.where(both, -1, other))
        order = np.argsort(-total, kind="stable")
        sums[one], sets[one] = total[order], merged[order]
        heappush(heap, (float(total.min() - total.max()), one))
    pack = np.empty(len(value), np.int64)
    last = sets[heap[0][1]]
    pack[last[last >= 0]] = np.arange(int((last >= 0).sum()))
    for gone, kept in reversed(joined):
        pack[gone] = pack[kept]
    return pack
