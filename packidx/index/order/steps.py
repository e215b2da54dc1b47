"""Which pack is trained on in which step: the rows behind SQL's view `steps`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from packidx.arrays import Int64s
from packidx.errors import OptionError
from packidx.format.index import IndexManifest
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
    def of(
        cls,
        snapshot: IndexManifest,
        *,
        seed: int | None = None,
        epoch: int | None = None,
        global_batch: int | None = None,
        world_size: int | None = None,
    ) -> Steps:
        """Of an index's manifest.

        Args:
            seed: of `PackSampler`; None: 0.
            epoch: the one to tell; None: each that was planned apart, once.
            global_batch: packs per optimizer step; None: what was planned for.
            world_size: data-parallel ranks; None: as many as the plan's micro-steps have packs,
                where the steps are the plan's.

        Raises:
            OptionError: values that make no sense together.
        """
        epochs = Epochs.of(snapshot)
        planned = packs_per_step(snapshot)
        if global_batch is None:
            global_batch = planned
        elif not 1 <= global_batch <= epochs.smallest:
            raise OptionError(
                f"global_batch {global_batch} is outside [1, {epochs.smallest}], the packs of an "
                "epoch"
            )
        is_scheduled = snapshot.result.schedule != "random" and global_batch == planned
        if world_size is None:
            world_size = epochs.chunk if is_scheduled else None
        elif world_size < 1 or (global_batch is not None and global_batch % world_size):
            raise OptionError(
                f"world_size {world_size} does not divide the {global_batch} packs of a step"
            )
        for name, value in {"seed": seed or 0, "epoch": epoch or 0}.items():
            if not 0 <= value < SEEDS:
                raise OptionError(f"{name} is {value}: it must be at least 0 and below 2^63")
        numbers = tuple(range(len(epochs.variants))) if epoch is None else (epoch,)
        return cls(snapshot.snapshot_id, epochs, numbers, seed or 0, global_batch, world_size)

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
        step, micro_step = self._steps(position)
        columns = [np.full(len(position), epoch), step, micro_step, position, order.packs(position)]
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, ORDER, strict=True)
        ]
        return pa.table(arrays, schema=ORDER)

    def _steps(self, position: Int64s) -> tuple[Any, Any]:
        """Step and micro-step of order positions, null where there is none, or nobody knows."""
        unknown = pa.nulls(len(position), pa.int64())
        if self.global_batch is None:
            return unknown, unknown
        step, place = np.divmod(position, self.global_batch)
        left_out = step >= len(position) // self.global_batch
        steps = pa.array(step, mask=left_out)
        if self.world_size is None:
            return steps, unknown
        return steps, pa.array(place // self.world_size, mask=left_out)
