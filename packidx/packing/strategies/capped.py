"""Packing under several limits at once: tokens, images, vision patches, samples per pack.

Where the plan for tokens alone happens to keep the other limits, it is the plan. Elsewhere items
are dealt into as many empty packs as no plan can do without, filled in all dimensions at once, the
largest weighted sum of sizes first. The rule is the dot product of Panigrahy, Talwar, Uyeda and
Wieder (2011, "Heuristics for vector bin packing", section 3): an item goes where the room lies in
the direction of its own sizes, each dimension weighted by how scarce it is. Looking at every pack
for every item is quadratic; here each item looks at a few. In a round the open packs are dealt out,
in pseudo-random order, to the next items, so that no two items see the same pack and all of them
choose at once. What fits nowhere is dealt to further packs, the last few items by best fit.

Where packs hold few items, or one limit alone decides, that may need some percent more packs than
best fit: the same order, each item where it leaves the least weighted room. So where dealing ends
far from the simplest bound, the one of both with fewer packs is taken.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from packidx.arrays import Float64s, Int64s
from packidx.hashing import derive_key
from packidx.packing.counts import volume_packs
from packidx.permutation import draw_permutation

# How many packs an item looks at, in one attempt after another, before it is left over: first a
# few, which makes large rounds, then as many as it takes to find the few packs that still fit.
_LOOKS = (64, 64, 256, 1024)

# Best fit looks at every pack: of so many items only.
_FEW = 4096
# A plan this near the simplest bound is not worth another try.
_NEAR = 0.0075

# Weighted sizes are integers, so that sums of them are the same on every machine.
_FULL = 1 << 40
_TOO_MUCH = np.iinfo(np.int64).max


def pack_capped(sizes: Int64s, limits: Int64s, key: int, start: Int64s) -> Int64s | None:
    """Pack items so that every pack keeps all limits.

    Args:
        sizes: int64 [n, d]; column 0 is tokens, positive; the others are not negative.
        limits: int64 [d]; no single item exceeds one.
        key: seeds all choices among equals.
        start: int64 [n], the packs of a plan that keeps limit 0.

    Returns:
        the pack of every item, int64 [n], numbered densely from 0; None if `start` keeps all
        limits.
    """
    # Sums of integers below 2^53: exact in any order.
    held = [np.bincount(start, column) for column in sizes.T]
    if all((sums <= limit).all() for sums, limit in zip(held, limits.tolist(), strict=True)):
        return None
    shuffled = draw_permutation(len(sizes), derive_key(key, "items"))
    weighted = sizes @ scarcity_weights(sizes, limits)
    order = shuffled[np.argsort(-weighted[shuffled], kind="stable")]
    bound = volume_packs(sizes, limits)
    pack, other = np.empty((2, len(sizes)), np.int64)
    pack[order] = _deal_all(sizes[order], limits, key)
    pack = _drop_empty(pack)
    if pack.max() + 1 - bound > _NEAR * bound:
        other[order] = _best_fit(sizes[order], limits)
        other = _drop_empty(other)
        return other if other.max() < pack.max() else pack
    return pack


def _deal_all(sizes: Int64s, limits: Int64s, key: int) -> Int64s:
    """The pack of every item, int64 [n], largest first; a pack may stay empty."""
    pack = np.full(len(sizes), -1, np.int64)
    total = turn = 0
    while len(left := np.flatnonzero(pack < 0)):
        if turn and len(left) <= _FEW:
            pack[left] = total + best_fit_in_all(sizes[left], limits, 1)
            break
        num_packs = volume_packs(sizes[left], limits)
        dealt = _into_empty(sizes[left], limits, num_packs, derive_key(key, turn))
        pack[left] = np.where(dealt < 0, -1, total + dealt)
        total, turn = total + num_packs, turn + 1
    return pack


def _best_fit(sizes: Int64s, limits: Int64s) -> Int64s:
    """Best fit in chunks, then once more of what stands in packs that a chunk left emptier."""
    chunks = -(-len(sizes) // _FEW)
    pack = best_fit_in_all(sizes, limits, chunks)
    if chunks > 1:
        weighted = sizes @ scarcity_weights(sizes, limits)
        full = np.bincount(pack, weighted >> 20)  # exact: far below 2^53
        again = np.flatnonzero((full < 0.9 * full.max())[pack])
        if len(again) < len(sizes) // 2:
            rest = best_fit_in_all(sizes[again], limits, -(-len(again) // _FEW))
            pack[again] = rest + len(full)
    return pack


def _drop_empty(pack: Int64s) -> Int64s:
    """The same packs without the empty ones."""
    used = np.bincount(pack) > 0
    return (np.cumsum(used) - 1)[pack]


def _into_empty(sizes: Int64s, limits: Int64s, num_packs: int, key: int) -> Int64s:
    """Deal items of `sizes`, int64 [n, d], the largest first, to so many empty packs.

    `key` seeds the order in which packs are looked at. Returns each item's pack, int64 [n], −1
    where none of those that it looked at has room.
    """
    rooms = np.repeat(limits[:, None], num_packs, axis=1)  # what is left of every limit, [d, packs]
    weights = scarcity_weights(sizes, limits) / _FULL
    pack = np.full(len(sizes), -1, np.int64)
    waiting = np.arange(len(sizes))
    for attempt, look in enumerate(_LOOKS):
        if len(waiting):
            own = derive_key(key, attempt)
            pack[waiting] = _deal_once(sizes[waiting], rooms, weights, look, own)
            waiting = waiting[pack[waiting] < 0]
    return pack


def _deal_once(sizes: Int64s, rooms: Int64s, weights: Float64s, look: int, key: int) -> Int64s:
    """One try for each item; returns its pack or −1, and takes from `rooms`."""
    # Nothing that is left to deal is smaller than this, per dimension.
    smallest = np.minimum.accumulate(sizes[::-1], axis=0)[::-1]
    pack = np.full(len(sizes), -1, np.int64)
    open_packs = np.arange(rooms.shape[1])
    at = turn = 0
    while at < len(sizes):
        if turn % 8 == 0:
            fits = (rooms[:, open_packs] >= smallest[at][:, None]).all(0)
            open_packs = open_packs[fits]
            if not len(open_packs):
                break
        seen = min(look, len(open_packs))
        batch = sizes[at : at + len(open_packs) // seen]
        window = _draw_packs(len(open_packs), len(batch) * seen, derive_key(key, turn))
        candidates = open_packs[window].reshape(len(batch), seen)
        chosen = _choose_packs(batch, rooms, candidates, weights)
        pack[at : at + len(batch)] = chosen
        fitting = chosen >= 0
        rooms[:, chosen[fitting]] -= batch[fitting].T  # no pack stands there twice
        at += len(batch)
        turn += 1
    return pack


def _draw_packs(count: int, length: int, key: int) -> Int64s:
    """`length` distinct numbers below `count`: an arithmetic progression modulo `count`."""
    step = key % count | 1
    while gcd(step, count) != 1:
        step += 1
    start = (key >> 32) % count
    return (np.arange(length) * (step % count) + start) % count


def _choose_packs(sizes: Int64s, rooms: Int64s, candidates: Int64s, weights: Float64s) -> Int64s:
    """Return for each item its best candidate pack, −1 where none fits."""
    score = np.zeros(candidates.shape)
    fits = np.ones(candidates.shape, bool)
    for room, size, weight in zip(rooms, sizes.T, weights, strict=True):
        has = room[candidates]
        fits &= has >= size[:, None]
        score += has * (size * weight * weight)[:, None]
    score[~fits] = -1
    best = score.argmax(1)
    each = np.arange(len(sizes))
    return np.where(fits[each, best], candidates[each, best], -1)


def best_fit_in_all(sizes: Int64s, limits: Int64s, chunks: int) -> Int64s:
    """Pack items one by one, in the order given, each where the least weighted room remains.

    Every open pack is looked at for every item, which is quadratic. So the items are dealt into
    `chunks`, which do not see each other's packs, and take one item each in every step.

    Args:
        sizes: int64 [n, d], usually the largest first; every item has some tokens.
        limits: int64 [d].

    Returns:
        int64 [n], each item's pack; not all numbers are used.
    """
    weights = scarcity_weights(sizes, limits)
    weighted = sizes @ weights
    opened = np.zeros(chunks, np.int64)
    pack = np.empty((len(sizes), 2), np.int64)  # chunk, number in it
    rooms = np.repeat(limits, chunks).reshape(len(limits), chunks, 1)
    total = np.full((chunks, 1), weights @ limits)  # weighted room
    for begin in range(0, len(sizes), chunks):
        if opened.max() == total.shape[1]:  # every chunk needs an empty pack
            empty = np.repeat(limits, total.size).reshape(rooms.shape)
            rooms = np.concatenate([rooms, empty], axis=2)
            total = np.concatenate([total, np.full(total.shape, weights @ limits)], axis=1)
        size = sizes[begin : begin + chunks]
        each, seen = np.arange(len(size)), int(opened.max()) + 1
        score = total[: len(size), :seen].copy()
        for room, part in zip(rooms, size.T, strict=True):
            score[room[: len(size), :seen] < part[:, None]] = _TOO_MUCH
        at = score.argmin(1)  # an empty pack fits, but has the most room of all
        rooms[:, each, at] -= size.T
        total[each, at] -= weighted[begin : begin + chunks]
        opened[: len(size)] = np.maximum(opened[: len(size)], at + 1)
        pack[begin : begin + chunks] = np.stack([each, at], axis=1)
    return (np.cumsum(opened) - opened)[pack[:, 0]] + pack[:, 1]


def scarcity_weights(sizes: Int64s, limits: Int64s) -> Int64s:
    """Weights of the dimensions, int64 [d]: what all items need of a limit, per unit of it.

    A pack that is full of the scarcest has a weighted size of about 2^40.
    """
    needs = list(zip(sizes.sum(0).tolist(), limits.tolist(), strict=True))
    total, limit = max(needs, key=lambda need: need[0] / max(1, need[1]))
    unit = max(1, total * _FULL // max(1, limit))
    return np.array([(t * _FULL * _FULL) // (unit * max(1, m) ** 2) for t, m in needs], np.int64)
