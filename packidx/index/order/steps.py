"""Which pack is trained on in which step: the rows behind SQL's view `steps`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from packidx.errors import OptionError
from packidx.format.index import IndexManifest
from packidx.index.order.dealing import Dealing, check_global_batch
from packidx.index.order.epochs import Epochs, packs_per_step
from packidx.index.order.state import SEEDS

ORDER = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int64()),
        pa.field("micro_step", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("pack_id", pa.int64()),
    ]
)
"""Columns of `Steps.table`."""


class StepOptions(TypedDict, total=False):
    """How training deals packs to steps, each None or absent where it is as planned."""

    seed: int | None
    """Of `PackSampler`; None means 0."""

    epoch: int | None
    """The one to tell; None means each that was planned apart, once."""

    global_batch: int | None
    """Packs per optimizer step."""

    world_size: int | None
    """Data-parallel ranks; None means as many as the plan's micro-steps have packs, where the steps
    are the plan's."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an index's epochs. Plain numbers alone, so that another process can be told."""

    snapshot_id: str
    epochs: Epochs
    numbers: tuple[int, ...]
    """Of the epochs that are told, ascending."""
    seed: int
    global_batch: int | None
    """Packs per optimizer step; None where nobody knows: `step` is null."""
    world_size: int | None
    """Data-parallel ranks; None where nobody knows: `micro_step` is null."""

    @classmethod
    def of(cls, snapshot: IndexManifest, **options: Unpack[StepOptions]) -> Steps:
        """Of an index's manifest.

        Raises:
            OptionError: values that make no sense together.
        """
        epochs, planned = Epochs.of(snapshot), packs_per_step(snapshot)
        epoch, seed = options.get("epoch"), options.get("seed") or 0
        global_batch, world_size = options.get("global_batch"), options.get("world_size")
        if global_batch is not None:
            name = f"snapshot {snapshot.snapshot_id[:12]}"
            check_global_batch(global_batch, world_size or 1, epochs, name)
        global_batch = global_batch or planned
        if world_size is None:
            is_planned = snapshot.result.schedule != "random" and global_batch == planned
            world_size = epochs.chunk if is_planned else None
        elif world_size < 1 or (global_batch is not None and global_batch % world_size):
            raise OptionError(
                f"world_size {world_size} does not divide the {global_batch} packs of a step"
            )
        for name, value in {"seed": seed, "epoch": epoch or 0}.items():
            if not 0 <= value < SEEDS:
                raise OptionError(f"{name} is {value}: it must be at least 0 and below 2^63")
        numbers = tuple(range(len(epochs.variants))) if epoch is None else (epoch,)
        return cls(snapshot.snapshot_id, epochs, numbers, seed, global_batch, world_size)

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> Steps:
        """Of JSON that `dataclasses.asdict` gave."""
        steps = cls(**stated)
        return replace(steps, epochs=Epochs(**stated["epochs"]))

    def table(self) -> pa.Table:
        """A row per pack and epoch (schema `ORDER`), in the order of training.

        The packs after the last whole step, which an epoch leaves out, have no `step`.
        """
        return pa.concat_tables([ORDER.empty_table(), *map(self._epoch, self.numbers)])

    def _epoch(self, epoch: int) -> pa.Table:
        order = self.epochs.order(self.snapshot_id, self.seed, epoch)
        position = np.arange(order.num_packs, dtype=np.int64)
        steps = micro_steps = pa.nulls(len(position), pa.int64())
        if self.global_batch is not None:
            dealing = Dealing(order, self.global_batch)
            turns = dealing.turns(position, self.world_size or 1)
            steps, dealt = (pa.array(turn, mask=position >= dealing.end) for turn in turns)
            micro_steps = micro_steps if self.world_size is None else dealt
        columns = [np.full(len(position), epoch), steps, micro_steps, position]
        arrays = [*map(_cast, [*columns, order.packs(position)], ORDER)]
        return pa.table(arrays, schema=ORDER)


def _cast(values: Any, field: pa.Field) -> pa.Array:
    return (values if isinstance(values, pa.Array) else pa.array(values)).cast(field.type)
