"""An epoch's packs: variants, ranges and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packidx.arrays import Int64s
from packidx.errors import FormatError
from packidx.index.order.epoch_order import EpochOrder, Ranges, blocks_first, order_key


def packs_per_step(manifest: Mapping[str, Any]) -> int | None:
    """Packs of an optimizer step that an index was planned for; None where it has no steps.

    A random order has none of its own: its `result.schedule_block` is what an epoch moves together.
    """
    if manifest["result"]["schedule"] == "random":
        stated: int | None = manifest["options"]["global_batch"]
        return stated
    return int(manifest["result"]["schedule_block"])


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
    def of(cls, manifest: Mapping[str, Any], path: str) -> Epochs:
        """Of an index's manifest; `path` is named in errors.

        Raises:
            FormatError: ``result`` has numbers that cannot be.
        """
        result = manifest["result"]
        block = _positive(result, "schedule_block", path)
        chunk = _positive(result, "schedule_chunk", path)
        if block % chunk:
            raise FormatError(
                f"{path}: result.schedule_block is {block}, no multiple of schedule_chunk {chunk}"
            )
        total = int(result["num_packs"])
        given = result.get("epochs")
        given = [[[0, total]]] if given is None else given
        if not isinstance(given, list) or not given:
            raise FormatError(f"{path}: result.epochs is {given!r}, not a list of epochs")
        return cls(tuple(_ranges(one, total, path) for one in given), block, chunk)

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


def _positive(result: Mapping[str, Any], name: str, path: str) -> int:
    value = result.get(name)
    value = 1 if value is None else value
    if type(value) is not int or value < 1:
        raise FormatError(f"{path}: result.{name} is {value}, not a positive whole number")
    return value


def _ranges(given: Any, total: int, path: str) -> Ranges:
    """One variant's ranges, every pack of them there and none twice."""
    try:
        ranges = tuple((first, count) for first, count in given)
    except (TypeError, ValueError):
        raise FormatError(
            f"{path}: result.epochs has {given!r}, not a list of [first pack, number of packs]"
        ) from None
    end = 0
    for first, count in sorted(ranges):
        if type(first) is not int or type(count) is not int or first < end or count < 0:
            raise FormatError(f"{path}: result.epochs has [{first}, {count}], which cannot be")
        end = first + count
    if end > total:
        raise FormatError(f"{path}: result.epochs reaches pack {end - 1} of {total} packs")
    return ranges
