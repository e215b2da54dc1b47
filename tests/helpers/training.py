"""What training has consumed of an index, for tests that go without torch."""

from __future__ import annotations

from typing import Any

from packidx.index import Index
from packidx.index.order import Epochs, State, consumed_packs


class Training:
    """The steps of an epoch, as `PackSampler` has them on all ranks together.

    Args:
        index: what is trained on.
        global_batch: packs per optimizer step.
        seed: of the order.
        epoch: of the order.
    """

    def __init__(self, index: Index, *, global_batch: int, seed: int = 0, epoch: int = 0) -> None:
        self.index, self.global_batch = index, global_batch
        self.seed, self.epoch = seed, epoch

    @property
    def num_steps(self) -> int:
        return Epochs.of(self.index.snapshot).num_packs // self.global_batch

    def state_at(self, step: int) -> dict[str, Any]:
        """The sampler's state once `step` steps are done."""
        position = step * self.global_batch
        state = State(
            snapshot_id=self.index.id,
            seed=self.seed,
            epoch=self.epoch,
            global_batch=self.global_batch,
            position=position,
        )
        return state.to_json()

    def packs_of_step(self, step: int) -> list[int]:
        """Pack ids that `step` trains on, in order."""
        consumed = consumed_packs(self.index.snapshot, self.state_at(step + 1))
        return consumed[step * self.global_batch :].tolist()
