"""How a run trains on an index: what `PackSampler` is given, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from packidx.errors import MismatchError, OptionError
from packidx.index.order import (
    SEEDS,
    Dealing,
    Epochs,
    State,
    check_global_batch,
    check_ranks,
    packs_per_step,
)
from packidx.index.reader import Index


@dataclass(frozen=True, slots=True)
class Run:
    """What a run's samplers were given, and how far it is."""

    seed: int
    epoch: int | None
    """None: any."""
    global_batch: int | None
    """None: unknown."""
    global_batch_from: str | None
    world_size: int | None
    position: int | None
    """Packs consumed of `epoch`, by the run's state; None without one."""

    def dealing(self, index: Index, epoch: int) -> Dealing:
        """How `epoch` is dealt; with steps of one pack where nobody says how large one is."""
        order = Epochs.of(index.snapshot).order(index.id, self.seed, epoch)
        return Dealing(order, self.global_batch or 1)


class RunOptions(TypedDict, total=False):
    """What is known of a run, each None or absent where it is not."""

    seed: int | None
    """Of the order; None means the state's, else 0."""
    epoch: int | None
    """None means the state's; without one 0 of a step, and of a sample every one that was planned
    apart."""
    global_batch: int | None
    """Packs per optimizer step; None means the state's, else the plan's."""
    world_size: int | None
    """Data-parallel ranks."""
    state: Mapping[str, Any] | None
    """How far the run is: `PackSampler.state_dict()` or `state_at(step)`."""


def run_of(index: Index, **options: Unpack[RunOptions]) -> Run:
    """What is known of a run on `index`; see `RunOptions`.

    Raises:
        OptionError: values that make no sense together.
        MismatchError: the state is of another snapshot, or of another run than what is given.
        FormatError: this is no state.
    """
    state, global_batch = options.get("state"), options.get("global_batch")
    world_size = options.get("world_size")
    read = None if state is None else _read(index, state)
    seed = 0 if (value := _agreed("seed", options.get("seed"), read)) is None else value
    epoch = _agreed("epoch", options.get("epoch"), read)
    for name, number in (("seed", seed), ("epoch", epoch or 0)):
        if not 0 <= number < SEEDS:
            raise OptionError(f"{name} is {number}: it must be at least 0 and below 2^63")
    size = _agreed("global_batch", global_batch, read)
    come_from: str | None = "given" if global_batch is not None else "state"
    if size is None:
        size = packs_per_step(index.snapshot)
        come_from = None if size is None else "plan"
    if world_size is not None:
        check_ranks(0, world_size)
    if size is not None and come_from == "plan" and size % (world_size or 1):
        raise OptionError(
            f"{index.path}@{index.id[:12]} was planned for a global batch of {size} packs, which"
            f" {world_size} ranks cannot share alike: give the global batch that PackSampler was"
            " given"
        )
    if size is not None and (come_from != "plan" or world_size is not None):
        check_global_batch(
            size, world_size or 1, Epochs.of(index.snapshot), f"{index.path}@{index.id[:12]}"
        )
    return Run(seed, epoch, size, come_from, world_size, None if read is None else read.position)


def _read(index: Index, state: Mapping[str, Any]) -> State:
    read = State.read(state)
    if read.snapshot_id != index.id:
        raise MismatchError(
            f"the state has snapshot_id {read.snapshot_id}, this index {index.id}: name the"
            " snapshot that was trained on (INDEX@ID)"
        )
    read.check_position(Epochs.of(index.snapshot).num_packs(read.epoch))
    return read


def _agreed(name: str, given: int | None, state: State | None) -> int | None:
    """What is given, or the state has, which must be the same."""
    if state is None:
        return given
    stated: int = getattr(state, name)
    if given is not None and given != stated:
        raise MismatchError(f"the state has {name} {stated}, and {given} is asked for: give one")
    return stated
