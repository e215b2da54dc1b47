"""An epoch's packs: variants, ranges and blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packidx.arrays import Int64s
from packidx.format.index import IndexManifest
from packidx.index.order.epoch_order import EpochOrder, Ranges, blocks_first, order_key


def packs_per_step(snapshot: IndexManifest) -> int | None:
    """Packs of an optimizer step that an index was planned for; None where it has no steps.

    A random order has none of its own: its `result.schedule_block` is what an epoch moves together.
    """
    if snapshot.result.schedule == "random":
        return snapshot.options.global_batch
    return snapshot.result.schedule_block


@dataclass(frozen=True, slots=True)
class Epochs:
    """The variants of an epoch and what its order may exchange.

    Attributes:
        variants: [first pack, number of packs] of each range, for every variant: epoch e trains on
            variant e modulo their number.
        block: `result.schedule_block`, packs that an epoch moves together.
        chunk: `result.schedule_chunk`, packs that stay together within a block.
    """

    variants: tuple[Ranges, ...]
    block: int
    chunk: int

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
