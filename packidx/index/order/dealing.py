"""How an epoch's packs are dealt to optimizer steps, micro-steps and ranks: the one rule for it.

Step S trains on order positions [S·G, (S+1)·G), G being the global batch. With W ranks, micro-step
m of rank r in that step is position S·G + m·W + r. The positions after the last whole step are left
out of the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.index.order.epochs import EpochOrder, Epochs


class Turn(NamedTuple):
    """When a pack is trained on, and by whom."""

    step: int
    place: int
    """Place in its step, 0 ≤ place < global batch."""
    micro_step: int
    rank: int


def check_ranks(rank: int, world_size: int) -> None:
    """Refuse a rank that there is not.

    Raises:
        OptionError: it is outside [0, world_size), or there is no rank at all.
    """
    if world_size < 1:
        raise OptionError(f"world_size is {world_size}; it must be at least 1")
    if not 0 <= rank < world_size:
        raise OptionError(
            f"rank {rank} is outside [0, {world_size}), the ranks of world_size {world_size}"
        )


def check_global_batch(global_batch: int, world_size: int, epochs: Epochs, name: str) -> None:
    """Refuse a global batch that cannot be dealt to the ranks, or of which there is no step.

    Args:
        name: the index in words, for the error.

    Raises:
        OptionError: it is no multiple of `world_size`, or larger than an epoch.
    """
    if global_batch < 1 or global_batch % world_size:
        raise OptionError(
            f"global_batch {global_batch} is not a positive multiple of world_size"
            f" {world_size}; every rank must train on the same number of packs per step"
        )
    if global_batch > epochs.smallest:
        raise OptionError(
            f"global_batch {global_batch} exceeds the {epochs.smallest} packs of an"
            f" epoch of {name}, so it has no step: lower it or plan more data"
        )


@dataclass(frozen=True, slots=True)
class Dealing:
    """One epoch's packs, dealt to steps of `global_batch` packs and to ranks.

    Nothing is kept but the order's few numbers: any part of it is computed when it is asked for.
    """

    order: EpochOrder
    global_batch: int

    @property
    def num_steps(self) -> int:
        """Optimizer steps in the epoch."""
        return self.order.num_packs // self.global_batch

    @property
    def end(self) -> int:
        """The order position behind the last step."""
        return self.num_steps * self.global_batch

    def left_out(self) -> Int64s:
        """Packs of the one incomplete step that the epoch leaves out, int64, in order."""
        return self.packs(self.end, self.order.num_packs)

    def packs(self, start: int, stop: int) -> Int64s:
        """Packs at order positions start .. stop - 1, int64."""
        return self.order.packs(np.arange(start, stop, dtype=np.int64))

    def packs_of_step(self, step: int) -> Int64s:
        """Packs of optimizer step `step`, int64 [global_batch], rank 0's first pack first.

        Raises:
            OptionError: the epoch has no such step.
        """
        if not 0 <= step < self.num_steps:
            raise OptionError(f"step {step} is outside [0, {self.num_steps}), an epoch's steps")
        return self.packs(step * self.global_batch, (step + 1) * self.global_batch)

    def packs_of_rank(self, start: int, stop: int, rank: int, world_size: int) -> Int64s:
        """What one rank trains on of order positions start .. stop - 1, int64.

        `start` is a position at which rank 0 is next, as it is at the beginning of every step.
        """
        return self.order.packs(np.arange(start + rank, stop, world_size, dtype=np.int64))

    def turn(self, position: int, world_size: int = 1) -> Turn:
        """When, and on which of `world_size` ranks, the pack at an order position is trained on."""
        step, place = divmod(position, self.global_batch)
        return Turn(step, place, place // world_size, place % world_size)

    def turns(self, positions: Int64s, world_size: int = 1) -> tuple[Int64s, Int64s]:
        """Step and micro-step of order positions, int64 each: `turn` of many at once."""
        step, place = np.divmod(positions, self.global_batch)
        return step, place // world_size
