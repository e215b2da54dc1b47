"""The order of the packs: micro-steps of equal cost, optimizer steps of the whole mix.

The ranks of a micro-step wait for the slowest, once in the language model and once in the vision
tower, so a micro-step's packs should cost the same in both phases. `stratified` sorts the packs by
their cost in the vision tower, cuts them into slabs as wide as their micro-steps will be, and
sorts each by its cost in the language model: neighbours are near in both. A step of neighbours
would train on one kind of data; so each optimizer step takes one micro-step from every stratum, a
run of as many micro-steps as there are steps, and steps exchange micro-steps of a stratum as long
as that brings their shares of the mix closer together. `random` is a seeded permutation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from packidx.arrays import Bools, Float64s, Int64s
from packidx.hashing import derive_key
from packidx.index.cost import fixed_point
from packidx.permutation import draw_permutation, permute

SCHEDULES = ("stratified", "random")

# Packs per block of a random order: what an epoch reads together from few row groups.
RANDOM_BLOCK = 1024
# Rounds of exchanges between pairs of steps. On a mix of text, images and video (203 steps of 8
# micro-steps) the steps' shares spread at most 1.5 times as wide as random order's after 8 rounds,
# 0.7 after 32, 0.6 after 64, 0.5 after 128.
_ROUNDS = 64
_ROUNDS_OF_ONE = 8  # where there is one share alone to bring together
# Orders of the steps that are tried for the one whose neighbours' costs correlate least.
_ORDERS = 16
_FIXED = 1 << 12  # of one standard deviation, in the integers that decide an exchange


def blocks_of(kind: str, global_batch: int, micro_steps: int) -> tuple[int, int]:
    """``(schedule_block, schedule_chunk)`` of the manifest: what an epoch may shuffle."""
    if kind == "random":
        return RANDOM_BLOCK, 1
    return global_batch, global_batch // micro_steps


def schedule_packs(
    kind: str,
    llm: Float64s,
    vit: Float64s,
    *,
    global_batch: int,
    micro_steps: int,
    key: int,
    shares: Sequence[Int64s] = (),
    media: Bools | None = None,
) -> Int64s:
    """The packs in the order of training.

    Args:
        kind: one of `SCHEDULES`.
        llm: float64 [n], cost of each pack in the language model, at least 0.
        vit: float64 [n], in the vision tower, in the same unit.
        global_batch: packs of an optimizer step, over all ranks and accumulation.
        micro_steps: micro-steps of an optimizer step; global_batch is a multiple. Any number of
            ranks works that divides global_batch; those that divide a micro-step of
            global_batch / micro_steps packs profit, for its packs are sorted.
        key: of the seeded choices, 64 bits.
        shares: int64 [n] each, tokens of each pack whose share of a step is to vary little
            (visual tokens, tokens of each source); `stratified` alone looks at them.
        media: bool [n], packs that share no micro-step with the others; of each kind there is a
            multiple of a micro-step's packs. None means that all packs may.

    Returns:
        int64 [n], order[i] = the i-th pack. The n mod global_batch packs at its end are a
        seeded random choice.
    """
    count = len(llm)
    if kind == "random":
        return draw_permutation(count, derive_key(key, "packs"))
    steps, chunk = count // global_batch, global_batch // micro_steps
    kinds = [np.arange(count)] if media is None else [np.flatnonzero(~media), np.flatnonzero(media)]
    rests = _share_rest(count % global_batch, [len(packs) for packs in kinds], chunk)
    cut, left = [], []
    for number, (packs, size) in enumerate(zip(kinds, rests, strict=True)):
        numbers = np.arange(size, dtype=np.uint64)
        own = derive_key(key, "rest", number) if number else derive_key(key, "rest")
        chosen = permute(numbers, len(packs), own).astype(np.int64)
        left.append(packs[chosen])
        cut.append(micro_steps_by_cost(llm, vit, np.delete(packs, chosen), chunk))
    total = llm + vit
    largest = float(total.max(initial=0.0))
    chunks = np.concatenate(cut)
    chunks = np.take_along_axis(chunks, np.argsort(total[chunks], axis=1, kind="stable"), axis=1)
    table = _draw_steps(steps, micro_steps, key)
    if steps > 1 and micro_steps > 1:
        phases = [fixed_point(cost, largest, 30) for cost in (llm, vit)]
        features = _scale_features([*phases, *shares], chunks, global_batch)
        _exchange_chunks(table, features, derive_key(key, "exchange"))
    costs = fixed_point(total, largest, 30)[chunks].sum(axis=1)[table].sum(axis=1)
    table = table[_order_of_steps(costs, key)]
    rest = [_sort_by_cost(total, packs, largest) for packs in left]
    return np.concatenate([chunks[table].ravel(), *rest])


def _share_rest(rest: int, sizes: Sequence[int], chunk: int) -> list[int]:
    """Divide the packs behind the last step over kinds of packs, whole micro-steps of each."""
    if len(sizes) == 1:
        return [rest]
    text, media = sizes
    steps = rest // chunk
    wanted = steps * text // max(1, text + media)
    of_text = min(max(wanted, steps - media // chunk), text // chunk)
    return [of_text * chunk, (steps - of_text) * chunk]


def micro_steps_by_cost(llm: Float64s, vit: Float64s, packs: Int64s, chunk: int) -> Int64s:
    """`packs` as micro-steps, int64 [len(packs) / chunk, chunk]; neighbours are near in cost."""
    largest = float(llm.max(initial=0.0))
    number = len(packs) // chunk
    if not number or not np.ptp(vit[packs]):  # one cost alone
        return _sort_by_cost(llm, packs, largest).reshape(-1, chunk)
    packs = _sort_by_cost(vit, packs, float(vit.max()))
    # As wide in the one cost, on average, as they are long in the other.
    wide, long = (
        _mean_deviation(fixed_point(cost[packs], max(largest, float(vit.max())), 30))
        for cost in (vit, llm)
    )
    slabs = math.isqrt(number * wide // max(1, long))
    slabs = min(number, max(1, slabs))
    edges = [number * slab // slabs * chunk for slab in range(slabs + 1)]
    cut = [_sort_by_cost(llm, packs[start:stop], largest) for start, stop in pairwise(edges)]
    # Every other one is turned round, so that the ends of two slabs are near each other.
    turned = [slab[::-1] if at % 2 else slab for at, slab in enumerate(cut)]
    return np.concatenate(turned).reshape(-1, chunk)


def _mean_deviation(cost: Int64s) -> int:
    """The mean distance of costs, at most 2^30, from their mean."""
    return int(np.abs(cost - int(cost.sum()) // len(cost)).sum()) // len(cost)


def _sort_by_cost(cost: Float64s, packs: Int64s, largest: float) -> Int64s:
    """`packs` by cost to 31 bits, equals as they stand: a radix sort, 16 bits at a time."""
    keys = fixed_point(cost[packs], largest, 31)
    for shift in (0, 16):
        digit = (keys >> shift).astype(np.uint16) if shift else keys.astype(np.uint16)
        order = np.argsort(digit, kind="stable")
        packs, keys = packs[order], keys[order]
    return packs


def _draw_steps(steps: int, micro_steps: int, key: int) -> Int64s:
    """Return which chunk is which micro-step of which step, int64 [steps, micro_steps].

    A stratum is `steps` neighbouring chunks; each step has one of each, in an order of its own.
    """
    table = np.empty((steps, micro_steps), np.int64)
    for stratum in range(micro_steps):
        dealt = draw_permutation(steps, derive_key(key, "stratum", stratum))
        table[:, stratum] = stratum * steps + dealt
    keys = np.array([derive_key(key, "step")], np.uint64) + np.arange(steps, dtype=np.uint64)
    numbers = np.repeat(np.arange(micro_steps, dtype=np.uint64), steps)
    moved = permute(numbers, micro_steps, np.tile(keys, micro_steps)).reshape(micro_steps, steps)
    return np.take_along_axis(table, moved.T.astype(np.int64), axis=1)


def _order_of_steps(costs: Int64s, key: int) -> Int64s:
    """A seeded order of the steps in which a step's cost, int64 [steps], says nothing of the next.

    Any random order does so on average; the autocorrelation of one of n steps is off by 1/sqrt(n).
    """
    orders = [draw_permutation(len(costs), derive_key(key, "steps", n)) for n in range(_ORDERS)]
    if len(costs) < 3:
        return orders[0]
    off = costs - int(costs.sum()) // len(costs)
    off //= max(1, int(np.abs(off).max()) >> 20)  # products that 64 bits can sum
    return min(orders, key=lambda order: abs(int((off[order[1:]] * off[order[:-1]]).sum())))


def _scale_features(columns: list[Int64s], chunks: Int64s, global_batch: int) -> Int64s:
    """Each chunk's distance from the mean, by column, int64 [chunks, columns].

    In units of what a step of random packs is off, times `_FIXED`: so all columns weigh alike.
    The deviation is taken as 5/4 of the mean absolute one, which integers can sum.
    """
    features = np.zeros((len(chunks), len(columns)), np.int64)
    for number, column in enumerate(columns):
        mean = int(column.sum()) // len(column)
        deviation = 5 * int(np.abs(column - mean).sum()) // (4 * len(column))
        unit = max(1, deviation * math.isqrt(global_batch))
        if deviation:
            distance = column[chunks].sum(axis=1, dtype=np.int64) - mean * chunks.shape[1]
            features[:, number] = distance * _FIXED // unit
    return features


def _exchange_chunks(table: Int64s, features: Int64s, key: int) -> None:
    """Steps, in pairs, exchange chunks of a stratum where both then come closer to the mean.

    An exchange that moves d = a - b from one step's sum P to another's Q changes |P|² + |Q|² by
    2·|d|² - 2·d·(P - Q): it is made where that is negative. `table` is changed in place.
    """
    features = features[:, features.any(axis=0)]
    steps, micro_steps = table.shape
    # Every column one stratum, so that what is exchanged is of one stratum.
    strata = np.argsort(table // steps, axis=1, kind="stable")
    chunk = np.take_along_axis(table, strata, axis=1)
    sums = features[chunk].sum(axis=1)
    half = steps // 2
    for number in range(_ROUNDS if features.shape[1] > 1 else _ROUNDS_OF_ONE):
        order = draw_permutation(steps, derive_key(key, number))
        these, those = order[:half], order[half : 2 * half]
        gap = sums[these] - sums[those]
        for stratum in range(micro_steps):
            mine, theirs = chunk[these, stratum], chunk[those, stratum]
            moved = features[mine] - features[theirs]
            better = (moved * (gap - moved)).sum(axis=1) > 0
            chunk[these, stratum] = np.where(better, theirs, mine)
            chunk[those, stratum] = np.where(better, mine, theirs)
            gap -= 2 * moved * better[:, None]
        total = sums[these] + sums[those]
        sums[these] = (total + gap) // 2
        sums[those] = total - sums[these]
    np.put_along_axis(table, strata, chunk, axis=1)
