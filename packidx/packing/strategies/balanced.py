"""Best fit that mixes long with short: as few packs, better composed.

Best-fit-decreasing fills packs with equals. Here all packs stand open from the beginning, and
samples, longest first, are dealt like cards:

- a sample that fills a pack exactly goes there (but for the longest ones, see below);
- otherwise it goes to the emptiest pack, while that has room for more than `times` such samples:
  this is worst fit, which makes packs alike and keeps long and short together;
- otherwise to the fullest pack it fits: best fit, which lets no room go to waste.

The longest samples, down to the length at which some share of all tokens is dealt, go to the
emptiest pack whatever it has room for. Eight pairs of both numbers are tried per histogram, since
what they cost in packs depends on it. Filling exactly is what makes it work: without it, packs that
are all nearly full wait for the last, shortest samples, of which there are too few, and the plan
needs 0.01 to 0.1 % more packs than best fit (measured on log-normal lengths); with it, as many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packidx.arrays import Int64s
from packidx.packing.counts import Histogram, LengthPairs, PackRuns, volume_bound
from packidx.packing.strategies.decreasing import OpenPacks, best_fit_decreasing
from packidx.permutation import draw_permutation

# The share of tokens dealt to the emptiest (in 1/20) and `times`. Of five shares by five numbers
# these eight were picked greedily on 70 histograms of twelve kinds: they leave 0.009 of the
# correlation on average, 0.2 at most, to the best of all 25.
_TRIED = ((13, 3), (13, 6), (0, 3), (0, 5), (6, 6), (10, 5), (16, 6), (10, 3))
# Of a plan as well composed as random packs: no other need be tried.
_BALANCED = 0.02
# A plan takes time in proportion to the distinct lengths: so many are planned at most, fewer than
# eight times where a capacity of 100,000 and more has as many lengths; one plan is always tried.
_MOST_LENGTHS = 1 << 18


def plan_balanced(
    histogram: Histogram, capacity: int, at_most: int | None = None, plain: PackRuns | None = None
) -> PackRuns | None:
    """The plan with the lowest intra-pack length correlation that was found.

    Args:
        at_most: packs that the plan may need; None asks for the fewest packs first.
        plain: best fit's plan, where it is known.

    Returns:
        The plan, which may be that of best fit; None if all need more than `at_most`.
    """
    if at_most is not None and volume_bound(histogram, capacity) > at_most:
        return None
    plain = best_fit_decreasing(histogram, capacity) if plain is None else plain
    limit = plain.total_packs if at_most is None else at_most
    best: PackRuns | None = None
    best_correlation = 2.0
    if plain.total_packs <= limit:
        best, best_correlation = plain, length_correlation(plain, histogram) or 0.0
    tries = max(1, _MOST_LENGTHS // max(1, len(histogram.lengths)))
    for share, times in _TRIED[:tries]:
        if best_correlation <= _BALANCED:
            break
        rule = DealRule(limit, _length_at(histogram, share), times)
        plan = deal_evenly(histogram, capacity, rule, limit)
        if plan is None:
            continue
        # None counts 0: nothing could be composed better.
        correlation = length_correlation(plan, histogram) or 0.0
        fewer = at_most is None and plan.total_packs < limit
        if fewer or correlation < best_correlation:
            best, best_correlation = plan, correlation
        if at_most is None:
            limit = plan.total_packs
    return best


class DealRule(NamedTuple):
    """Parameters of one way to deal samples to packs."""

    num_packs: int
    """Packs that stand open at the beginning."""
    until: int
    """Lengths from here up go to the emptiest pack that there is."""
    times: int
    """Shorter ones do while it has room for more than so many of them."""


def deal_evenly(histogram: Histogram, capacity: int, rule: DealRule, limit: int) -> PackRuns | None:
    """The plan that `rule` gives; None if it needs more than `limit` packs.

    Packs that stay empty do not count: they are the last ones, as each record takes the first
    packs of its run.
    """
    packs = OpenPacks.for_lengths(histogram, capacity)
    packs.add(capacity, (0, rule.num_packs, 0))
    packs.total = rule.num_packs
    for length, count in histogram.pairs():
        left, enough = count, length - 1
        if length < rule.until:
            enough = rule.times * length
            left = packs.fill_exactly(length, left)
        left = packs.deal_emptiest(length, left, enough)
        if not packs.fill_best(length, left, limit):
            return None
    return packs.plan(max((first + number for first, number, _, _ in packs.dealt), default=0))


def length_correlation(runs: PackRuns, histogram: Histogram) -> float | None:
    """The plan's intra-pack length correlation (see `composition`), from its runs alone."""
    dealt = np.cumsum(runs.num_packs * runs.per_pack)
    nth = np.searchsorted(np.cumsum(histogram.counts), dealt)  # the length of each record
    packs, held = runs.content(histogram.lengths[nth])
    pairs = LengthPairs()
    pairs.add(packs, *held)
    return pairs.correlation()


def _length_at(histogram: Histogram, share: int) -> int:
    """The longest length L such that samples ≥ L have `share`/20 of all tokens; 0/20: none has."""
    if share == 0 or not len(histogram.lengths):
        return 1 << 62
    tokens = np.cumsum(histogram.lengths * histogram.counts)
    return int(histogram.lengths[np.searchsorted(tokens, share * int(tokens[-1]) // 20)])


def even_out(pack: Int64s, length: Int64s, cost: Int64s, key: int) -> Int64s:
    """Return which item to put into each slot so that packs cost alike; the plan stays as it is.

    A plan on counts says only how long the sample in each slot is. Which of the samples of that
    length goes there is free, so what else they cost, their images for one, can be dealt out
    evenly. Length by length, longest first, the costliest sample goes to the pack that has cost
    least so far: the greedy rule for identical machines (Graham, 1969, "Bounds on multiprocessing
    timing anomalies"), within each length.

    A pack's slots of one length are served in rounds, one sample each: the first, the second, then
    third and fourth, fifth to eighth and so on together, there and back, without a look at the
    costs between them. Packs of equal cost are served in an order that `key` seeds, items of equal
    cost in theirs.

    Args:
        pack: int64 [n], the pack of each slot, from 0.
        length: int64 [n], of each slot, descending.
        cost: int64 [n], of the item that stands in each slot at first.
        key: any 64-bit integer.

    Returns:
        int64 [n], a permutation: the number of the slot where each slot's new item stood at first.
    """
    item = np.arange(len(pack))
    if len(pack) == 0:
        return item
    starts = np.concatenate([[0], np.flatnonzero(np.diff(length)) + 1])
    ends = np.append(starts[1:], len(pack))
    varied = np.maximum.reduceat(cost, starts) != np.minimum.reduceat(cost, starts)
    if not varied.any():
        return item
    rank = np.empty(int(pack.max()) + 1, np.int64)  # packs stand by it where they cost the same
    rank[draw_permutation(len(rank), key)] = np.arange(len(rank))
    total = np.zeros_like(rank)  # of each pack, by its rank
    rank = rank[pack]
    counted = 0
    for start, end in zip(starts[varied].tolist(), ends[varied].tolist(), strict=True):
        _add_cost(
            total, rank[counted:start], cost[counted:start]
        )  # lengths whose items cost the same
        counted = end
        costliest = start + np.argsort(-cost[start:end], kind="stable")
        slots = start + np.argsort(rank[start:end], kind="stable")
        packs = rank[slots]
        nth = np.arange(len(packs)) - np.searchsorted(packs, packs)
        together = np.frexp(nth)[1]  # bits: 0, 1, 2 2, 3 3 3 3, ...
        back = (nth % 2 == 1) & (together > 1)
        for number in range(int(together.max()) + 1):
            of_round = np.flatnonzero(together == number)
            held = total[packs[of_round]]
            held[back[of_round]] *= -1
            of_round = of_round[np.lexsort((held, nth[of_round]))]
            given, costliest = np.split(costliest, [len(of_round)])
            item[slots[of_round]] = given
            _add_cost(total, packs[of_round], cost[given])
    return item


def _add_cost(total: Int64s, pack: Int64s, cost: Int64s) -> None:
    if cost.any():
        np.add.at(total, pack, cost)
