"""The reader's state: what training has consumed of an epoch, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import FormatError, MismatchError
from packidx.format.index import IndexManifest
from packidx.index.order.epochs import Epochs

STATE_VERSION = 1
SEEDS = 1 << 63  # seeds and epochs are below


@dataclass(frozen=True, slots=True)
class State:
    """A `PackSampler.state_dict()`: what training has consumed of an epoch."""

    snapshot_id: str
    seed: int
    epoch: int
    global_batch: int
    position: int
    """Packs consumed in this epoch, over all ranks."""

    @classmethod
    def read(cls, state: Any) -> State:
        """Of what `state_dict()` gave, or JSON made of it.

        Raises:
            FormatError: it is not a state of this version.
        """
        if not isinstance(state, Mapping):
            raise FormatError(
                f"sampler state is {type(state).__name__}, not what state_dict() gave"
            )
        names = [field.name for field in fields(cls)]
        missing = sorted({"version", *names} - state.keys())
        if missing:
            raise FormatError(f"sampler state lacks {', '.join(missing)}; is it a PackSampler's?")
        if state["version"] != STATE_VERSION:
            raise FormatError(
                f"sampler state has version {state['version']}; this packidx knows {STATE_VERSION}"
            )
        for name in names[1:]:
            value, least = state[name], int(name == "global_batch")
            if type(value) is not int or not least <= value < SEEDS:
                raise FormatError(
                    f"sampler state has {name} {value!r}, no whole number from {least}"
                )
        return cls(**{name: state[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """The inverse of `read`."""
        return {"version": STATE_VERSION, **asdict(self)}

    def check_position(self, num_packs: int) -> None:
        """Refuse a position behind the last whole step of an epoch of `num_packs` packs.

        Raises:
            FormatError: it is.
        """
        end = num_packs // self.global_batch * self.global_batch
        if self.position > end:
            raise FormatError(f"sampler state has position {self.position}, outside [0, {end}]")


def consumed_packs(snapshot: IndexManifest, state: Any) -> Int64s:
    """Pack ids that training has consumed in the state's epoch, int64, in the order of training.

    Args:
        snapshot: manifest of the one that was trained on.
        state: `PackSampler.state_dict()` or `state_at(step)`.

    Raises:
        FormatError: this is no such state, or its position is behind the epoch's end.
        MismatchError: it is of another snapshot.
    """
    read = State.read(state)
    mine = snapshot.snapshot_id
    if read.snapshot_id != mine:
        raise MismatchError(
            f"the state has snapshot_id {read.snapshot_id}, this index {mine}: name the snapshot "
            "that was trained on (INDEX@ID)"
        )
    epochs = Epochs.of(snapshot)
    read.check_position(epochs.num_packs(read.epoch))
    order = epochs.order(mine, read.seed, read.epoch)
    return order.packs(np.arange(read.position, dtype=np.int64))
