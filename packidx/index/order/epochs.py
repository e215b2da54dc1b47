"""An epoch's packs, and their order: a keyed bijection from order positions to pack numbers.

Nothing is shuffled in memory. A position is turned into a pack number by a few integer operations,
so any part of the order can be had on its own, on any rank, after any restart. Only wrapping uint64
arithmetic is used: the same numbers come out on every platform and in every NumPy version.

A plan's schedule survives: an epoch exchanges whole blocks (optimizer steps), within a block whole
chunks (micro-steps), and within a chunk packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packidx.arrays import Int64s, Uint64s
from packidx.format.index import IndexManifest
from packidx.hashing import derive_key, splitmix64, splitmix64s
from packidx.permutation import permute, unpermute

Ranges = tuple[tuple[int, int], ...]


def order_key(snapshot_id: str, seed: int, epoch: int) -> int:
    """The 64-bit key of one epoch's order."""
    return derive_key(seed, epoch, snapshot_id)


class EpochOrder:
    """Order position -> pack number, for one epoch, in memory for its ranges and one block.

    The packs that fill no block, fewer than one, stand at the end of the order, where a reader of
    steps as large as blocks leaves them out. Lest those be the same in every epoch, they first
    change places, by chunks, with as many packs of one block: which one is drawn so that every pack
    is left out alike often, and only one step of the epoch has micro-steps of unequal cost.

    Args:
        ranges: [first pack, number of packs] of every range of the epoch; the packs of a range that
            fill no block of it come after the blocks of all ranges.
        block: `result.schedule_block` of the manifest.
        chunk: `result.schedule_chunk`; `block` is a multiple.
        key: from `order_key`.
    """

    def __init__(self, ranges: Sequence[Sequence[int]], block: int, chunk: int, key: int) -> None:
        self.block, self.chunk, self.key = block, chunk, key
        parts = blocks_first(ranges, block, chunk)
        self._first = np.array([first for first, _ in parts], np.int64)
        self._starts = np.cumsum([0, *(count for _, count in parts)], dtype=np.int64)
        self.num_packs = int(self._starts[-1])
        self.full, self.tail = divmod(self.num_packs, block)
        self._exchanged = self._draw_exchanged()
        self._sorted = np.argsort(self._exchanged)

    def packs(self, positions: npt.NDArray[Any]) -> Int64s:
        """Pack numbers, int64, at the order `positions` (each in [0, num_packs))."""
        where = np.asarray(positions).astype(np.uint64)
        body = np.uint64(self.full * self.block)
        planned = np.empty(len(where), np.int64)
        inside = where < body
        planned[inside] = self._in_blocks(where[inside])
        planned[~inside] = body + permute(where[~inside] - body, self.tail, self._key(4))
        self._exchange(planned)
        part = np.searchsorted(self._starts, planned, side="right") - 1
        return self._first[part] + planned - self._starts[part]

    def positions(self, packs: npt.NDArray[Any]) -> Int64s:
        """Order positions of `packs`, int64, the inverse of `packs`; -1 of another epoch's."""
        numbers = np.asarray(packs).astype(np.int64)
        ascending = np.argsort(self._first)
        nearest = np.searchsorted(self._first[ascending], numbers, side="right") - 1
        part = ascending[np.maximum(nearest, 0)] if len(ascending) else np.zeros_like(numbers)
        sizes = np.diff(self._starts)
        mine = nearest >= 0
        mine[mine] = (numbers[mine] - self._first[part[mine]]) < sizes[part[mine]]
        planned = numbers[mine] - self._first[part[mine]] + self._starts[part[mine]]
        self._exchange(planned)  # which undoes itself
        places = planned.astype(np.uint64)
        body = np.uint64(self.full * self.block)
        inside = places < body
        positions = np.full(len(numbers), -1, np.int64)
        found = np.empty(len(places), np.uint64)
        found[inside] = self._out_of_blocks(places[inside])
        found[~inside] = body + unpermute(places[~inside] - body, self.tail, self._key(4))
        positions[mine] = found
        return positions

    def _out_of_blocks(self, planned: Uint64s) -> Uint64s:
        """The inverse of `_in_blocks`."""
        chunk, per_block = np.uint64(self.chunk), self.block // self.chunk
        slot, pack = planned // chunk, planned % chunk
        number, inside = slot // np.uint64(per_block), slot % np.uint64(per_block)
        pack = unpermute(pack, self.chunk, splitmix64s(slot ^ np.uint64(self._key(3))))
        inside = unpermute(inside, per_block, splitmix64s(number ^ np.uint64(self._key(2))))
        number = unpermute(number, self.full, self._key(1))
        return number * np.uint64(self.block) + inside * chunk + pack

    def _in_blocks(self, where: Uint64s) -> Uint64s:
        """Where in the plan positions of full blocks are, blocks, chunks and packs permuted."""
        block, chunk = np.uint64(self.block), np.uint64(self.chunk)
        number = permute(where // block, self.full, self._key(1))
        per_block = self.block // self.chunk
        slot = where % block // chunk
        slot = permute(slot, per_block, splitmix64s(number ^ np.uint64(self._key(2))))
        slot += number * np.uint64(per_block)
        pack = permute(where % chunk, self.chunk, splitmix64s(slot ^ np.uint64(self._key(3))))
        return slot * chunk + pack

    def _draw_exchanged(self) -> Int64s:
        """What exchanges its packs with the tail, as places in the plan, int64 [tail], or none.

        A block is drawn with the share of the packs that it has, and so is the tail itself, which
        then stays; from a block the tail's whole chunks take chunks, its rest packs of one more.
        """
        drawn = self._key(5) % max(1, self.num_packs)
        if not self.tail or drawn >= self.full * self.block:
            return np.zeros(0, np.int64)
        tail = np.arange(self.tail, dtype=np.uint64)
        slot = permute(tail // np.uint64(self.chunk), self.block // self.chunk, self._key(6))
        inside = permute(tail % np.uint64(self.chunk), self.chunk, self._key(7))
        first = drawn // self.block * self.block
        return first + (slot * np.uint64(self.chunk) + inside).astype(np.int64)

    def _exchange(self, planned: Int64s) -> None:
        """Exchange, in `planned`, the tail with what was drawn for it."""
        if not len(self._exchanged):
            return
        body = self.full * self.block
        nearest = np.searchsorted(self._exchanged, planned, sorter=self._sorted)
        tail = self._sorted[np.minimum(nearest, self.tail - 1)]
        there, here = planned >= body, self._exchanged[tail] == planned
        planned[there] = self._exchanged[planned[there] - body]
        planned[here] = body + tail[here]

    def _key(self, purpose: int) -> int:
        return splitmix64(self.key ^ purpose)


def blocks_first(ranges: Sequence[Sequence[int]], block: int, chunk: int) -> list[tuple[int, int]]:
    """`ranges` cut into their blocks, then their chunks that fill none, then the rest."""
    blocks, chunks, packs = [], [], []
    for first, count in ranges:
        in_blocks, in_chunks = count // block * block, count // chunk * chunk
        blocks.append((first, in_blocks))
        chunks.append((first + in_blocks, in_chunks - in_blocks))
        packs.append((first + in_chunks, count - in_chunks))
    return [part for part in (*blocks, *chunks, *packs) if part[1]]


def packs_per_step(snapshot: IndexManifest) -> int | None:
    """Packs of an optimizer step that an index was planned for; None where it has no steps.

    A random order has none of its own: its `result.schedule_block` is what an epoch moves together.
    """
    if snapshot.result.schedule == "random":
        return snapshot.options.global_batch
    return snapshot.result.schedule_block


@dataclass(frozen=True, slots=True)
class Epochs:
    """The variants of an epoch and what its order may exchange."""

    variants: tuple[Ranges, ...]
    """[first pack, packs] of each range; epoch e trains on variant e modulo their number."""
    block: int
    """`result.schedule_block`, packs that an epoch moves together."""
    chunk: int
    """`result.schedule_chunk`, packs that stay together within a block."""

    @classmethod
    def of(cls, snapshot: IndexManifest) -> Epochs:
        """Of an index's manifest."""
        result = snapshot.result
        variants = (((0, result.num_packs),),) if result.epochs is None else result.epochs
        return cls(variants, result.schedule_block, result.schedule_chunk)

    @property
    def smallest(self) -> int:
        """Packs of the smallest variant."""
        return min(self.num_packs(number) for number in range(len(self.variants)))

    def num_packs(self, epoch: int) -> int:
        """Packs of `epoch`."""
        return sum(count for _, count in self.variants[epoch % len(self.variants)])

    def scheduled(self, epoch: int) -> Int64s:
        """Pack numbers of `epoch` as they were planned: each range's blocks, then what is left."""
        parts = blocks_first(self.variants[epoch % len(self.variants)], self.block, self.chunk)
        return np.concatenate([np.arange(0), *(np.arange(f, f + n) for f, n in parts)])

    def order(self, snapshot_id: str, seed: int, epoch: int) -> EpochOrder:
        """The order in which `epoch` trains on its packs."""
        ranges = self.variants[epoch % len(self.variants)]
        return EpochOrder(ranges, self.block, self.chunk, order_key(snapshot_id, seed, epoch))
