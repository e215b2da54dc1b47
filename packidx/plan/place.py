"""From run-length records to every sample's place: no joins, no Python per sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packidx.mix import BijectiveMix, derive_key, permutation
from packidx.plan.best_fit import best_fit_decreasing
from packidx.plan.histogram import Histogram
from packidx.plan.runs import Records

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """Items in the order of the samples table: by pack_id, then position.

    Attributes:
        item: int64 [n], which item stands there.
        first_row: int64 [num_packs + 1], where each pack begins; the last entry is n.
    """

    item: Int64s
    first_row: Int64s

    @property
    def num_packs(self) -> int:
        return len(self.first_row) - 1

    @property
    def samples_per_pack(self) -> Int64s:
        return np.diff(self.first_row)


def place(lengths: Int64s, capacity: int, seed: int) -> Placement:
    """Pack items of the given `lengths` (int64 [n], 1..capacity), packs in seeded random order."""
    records = best_fit_decreasing(Histogram.of(lengths), capacity)
    dealt = _deal_order(lengths, seed)
    pack, position = _expand(records)
    order = permutation(records.total_packs, derive_key(seed, "packs"))
    pack_id = np.empty_like(order)
    pack_id[order] = np.arange(records.total_packs)
    sizes = np.bincount(pack, minlength=records.total_packs)[order]
    first_row = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    item = np.empty_like(dealt)
    item[first_row[pack_id[pack]] + position] = dealt
    return Placement(item, first_row)


def _deal_order(lengths: Int64s, seed: int) -> Int64s:
    """Items by (length descending, seeded mix of the item's number).

    Both go into one 64-bit key, whose low bits are the mixed number: sorting the keys sorts the
    items, and undoing the mix names them, so no index array is sorted along.
    """
    bits = max(1, (len(lengths) - 1).bit_length())
    mix = BijectiveMix(bits, derive_key(seed, "samples"))
    longest = int(lengths.max(initial=0))
    if longest.bit_length() + bits > 64:
        raise OverflowError(f"{len(lengths)} samples of up to {longest} tokens exceed a 64-bit key")
    keys = (longest - lengths).astype(np.uint64) << np.uint64(bits)
    keys |= mix.forward(np.arange(len(lengths), dtype=np.uint64))
    keys.sort()
    keys &= np.uint64((1 << bits) - 1)
    return mix.inverse(keys).astype(np.int64)


def _expand(records: Records) -> tuple[Int64s, Int64s]:
    """Provisional pack number and position of every dealt item."""
    counts = records.num_packs * records.per_pack
    begin = np.cumsum(counts) - counts
    offset = np.arange(int(counts.sum())) - np.repeat(begin, counts)
    per_pack = np.repeat(records.per_pack, counts)
    nth, within = np.divmod(offset, per_pack)
    return np.repeat(records.first_pack, counts) + nth, np.repeat(records.position, counts) + within
