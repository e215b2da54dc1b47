"""Sums over the samples of each pack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.format.schema import SUMMED
from packidx.pack.slots import Slots
from packidx.plan.select.items import Items


@dataclass(frozen=True, slots=True)
class Packs:
    """Counters of provisional packs, in any order: all arrays ``[n]``.

    Attributes:
        sizes: int64, items in each.
        sums: column of the packs table -> (sums, where a part is unknown).
        group: int32, number in the window's groups.
    """

    sizes: Int64s
    sums: dict[str, tuple[Int64s, Bools | None]]
    group: Int32s

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, order: Int64s) -> Packs:
        """These packs in another order, or some of them."""
        sums = {
            name: (values[order], None if null is None else null[order])
            for name, (values, null) in self.sums.items()
        }
        return Packs(self.sizes[order], sums, self.group[order])


def sum_up(items: Items, slots: Slots, group: Int32s, pad_to: int) -> Packs:
    """Counters of the packs that `slots` makes of `items`, padded to multiples of `pad_to`."""
    item = slots.item

    def total(values: NDArray[Any]) -> Int64s:
        # Sums below 2^53 are exact in the doubles that bincount adds.
        return np.bincount(slots.pack, values, slots.num_packs).astype(np.int64)

    if slots.sums is not None and items.padded is items.length and items.folded is None:
        sizes, tokens, squares = slots.sums
    else:
        length = items.length[item]
        sizes = np.bincount(slots.pack, minlength=slots.num_packs).astype(np.int64)
        tokens, squares = total(length), total(items.squares[item])
    sums: dict[str, tuple[Int64s, Bools | None]] = {
        "length": (tokens, None),
        "attention_cost": (squares, None),
    }
    padded = tokens if items.padded is items.length else total(items.padded[item])
    sums["padded_length"] = (-(-padded // pad_to) * pad_to, None)
    for name in SUMMED:
        column = items.column(name)
        if column is None:
            continue
        values, null = column
        unknown = None
        if null is not None and null.any():
            unknown = np.bincount(slots.pack[null[item]], minlength=slots.num_packs) > 0
        sums[name] = (total(values[item]), unknown)
    return Packs(sizes, sums, group)


def with_length(item: Int32s, length: Ints) -> Int64s:
    """Items and their lengths as one number each, int64 [n]: what is put at random slots is so
    put once, and the lengths need not be looked up there."""
    return length.astype(np.int64, copy=False) << 32 | item
