"""Order the packs that a rank trains on, and keep the state that resumes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Sampler

from packidx.errors import MismatchError, OptionError
from packidx.index import Index, open_index
from packidx.index.described import short_name
from packidx.index.order import (
    Dealing,
    Epochs,
    State,
    check_global_batch,
    check_rank,
    integer,
    packs_per_step,
    whole_number,
)
from packidx.torch.loss import LossWeights

_CHUNK = 4096  # order positions computed at a time: a fraction of a millisecond, 32 KiB


class PackSampler(Sampler[int]):
    """Yields one rank's pack numbers, in an order that does not depend on ranks.

    Step S of an epoch trains on order positions [S·G, (S+1)·G), G being the global batch. With W
    ranks, rank r's m-th pack of that step is position S·G + m·W + r. The packs after the last
    whole step are left out of the epoch: `left_out` names them, others in every epoch.

    The plan's micro-steps of equal cost are kept, in another order in every epoch: a step is one
    of the plan's steps where `global_batch` is the plan's (`result.schedule_block`).

    Every iteration starts at the position that was loaded last, 0 if none, until one has run to
    its end or the epoch has changed; looking at a first batch therefore loses nothing.

    Args:
        index: path of an index (``dir`` or ``dir@ID``) or an opened one.
        rank: data-parallel rank, 0 ≤ rank < world_size.
        world_size: data-parallel ranks.
        global_batch: packs per optimizer step, over all ranks and accumulation; None means that
            of the plan. A random order has none unless it was planned with ``--global-batch``.
        seed: of the order.
        epoch: of the order; see `set_epoch`.

    Raises:
        OptionError: values that make no sense together.
    """

    def __init__(
        self,
        index: str | Path | Index,
        *,
        rank: int = 0,
        world_size: int = 1,
        global_batch: int | None = None,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        super().__init__()
        self.index = open_index(index)
        self.rank, self.world_size = integer("rank", rank), integer("world_size", world_size)
        check_rank(self.rank, self.world_size)
        if global_batch is None:
            global_batch = _planned_step(self.index)
        self.global_batch = integer("global_batch", global_batch)
        self.seed, self.epoch = whole_number("seed", seed), whole_number("epoch", epoch)
        self._epochs = Epochs.of(self.index.snapshot)
        name = f"{self.index.path}@{self.index.id[:12]}"
        check_global_batch(self.global_batch, self.world_size, self._epochs, name)
        self._start = 0  # where the next iteration begins
        self._position = 0  # global cursor in packs
        self._dealing = self._deal()

    def _deal(self) -> Dealing:
        order = self._epochs.order(self.index.id, self.seed, self.epoch)
        return Dealing(order, self.global_batch)

    def __repr__(self) -> str:
        names = ("rank", "world_size", "global_batch", "seed", "epoch")
        dealt = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"PackSampler({short_name(self.index.path, self.index.snapshot)}, {dealt})"

    @property
    def num_steps(self) -> int:
        """Optimizer steps in this epoch."""
        return self._dealing.num_steps

    @property
    def left_out(self) -> list[int]:
        """Pack ids of the one incomplete step that this epoch leaves out, in order."""
        result: list[int] = self._dealing.left_out().tolist()
        return result

    def __len__(self) -> int:
        """Packs this rank trains on in the whole of this epoch; equal for all ranks."""
        return self._dealing.end // self.world_size

    def __iter__(self) -> Iterator[int]:
        # The order is taken now: set_epoch while a DataLoader iterates concerns the next iteration.
        self._position = start = self._start
        stride, dealing = self.world_size, self._dealing
        while start < dealing.end:
            stop = min(dealing.end, start + _CHUNK * stride)
            packs = dealing.packs_of_rank(start, stop, self.rank, stride)
            for number, pack in enumerate(packs.tolist(), start=1):
                if dealing is self._dealing:
                    self._position = start + number * stride
                yield pack
            start = stop
        if dealing is self._dealing:
            self._start = 0

    def set_epoch(self, epoch: int) -> None:
        """Take `epoch`'s order; the cursor goes back to 0 only if that is another epoch."""
        epoch = whole_number("epoch", epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self._dealing = self._deal()
            self._start = self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The state after what has been yielded so far, equal on all ranks at equal counts.

        A DataLoader with workers draws ahead of training: use `state_at` there.
        """
        return self._state(self._position)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state once `step` optimizer steps of this epoch are done, 0 ≤ step ≤ num_steps."""
        step = integer("step", step)
        if not 0 <= step <= self.num_steps:
            raise OptionError(f"step {step} is outside [0, {self.num_steps}], an epoch's steps")
        return self._state(step * self.global_batch)

    def _state(self, position: int) -> dict[str, Any]:
        state = State(
            snapshot_id=self.index.id,
            seed=self.seed,
            epoch=self.epoch,
            global_batch=self.global_batch,
            position=position,
        )
        return state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which a sampler of any world size may have written.

        In the middle of a step the rest of it is dealt to the ranks if their number divides it;
        otherwise the step starts again from its first pack: its gradients were never applied.

        Raises:
            MismatchError: the state is of another snapshot, seed or global batch.
            FormatError: it is not a state of this class or version.
        """
        read = State.read(state)
        for name, advice in _MUST_AGREE.items():
            mine, other = self._state(0)[name], getattr(read, name)
            if mine != other:
                raise MismatchError(f"the state has {name} {other}, this sampler {mine}: {advice}")
        read.check_position(self._epochs.num_packs)
        position = read.position
        self.set_epoch(read.epoch)
        if position % self.global_batch % self.world_size:
            position -= position % self.global_batch
        self._start = self._position = position

    def packs_of_step(self, step: int) -> list[int]:
        """Pack ids of the global batch of optimizer step `step`, rank 0's first pack first."""
        result: list[int] = self._dealing.packs_of_step(integer("step", step)).tolist()
        return result

    def denominator(self, step: int, weight: str = "token") -> float | None:
        """Return what the loss of `step` is divided by, for a `LossWeights` of that name.

        Σ n · w(n) over the samples (or pieces) of the global batch, n being a sample's label
        tokens. It reads those packs' rows of the index, nothing else. None if a count is unknown:
        lengths are guessed, or do not say where the label tokens are of a sample that the plan
        cuts. `seen_denominator` is right also where samples are skipped.
        """
        # In order of their numbers: each row group is then decoded once.
        packs = map(self.index.pack, sorted(self.packs_of_step(step)))
        counts = [sample.label_tokens for pack in packs for sample in pack.samples]
        known = [count for count in counts if count is not None]
        return LossWeights(weight).total(known) if len(known) == len(counts) else None


def _planned_step(index: Index) -> int:
    """Return the packs of a step that `index` was planned for.

    Raises:
        OptionError: it has no steps.
    """
    size = packs_per_step(index.snapshot)
    if size is None:
        raise OptionError(
            f"{index.path}@{index.id[:12]} is in random order and has no steps of its own: pass"
            " global_batch=N, the packs of an optimizer step over all ranks and accumulation"
        )
    return size


_MUST_AGREE = {
    "snapshot_id": "open the index at the state's snapshot (dir@ID), or start a new run",
    "seed": "construct the sampler with the state's seed",
    "global_batch": "what a step trains on depends on it: keep it and change the accumulation",
}
