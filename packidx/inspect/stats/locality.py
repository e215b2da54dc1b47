"""How near to each other the samples of a pack lie in their shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.index.order.epochs import packs_per_step
from packidx.index.reader import Index


class Locality:
    """How far the samples of a pack, and of the packs of a step, are scattered over shards."""

    def __init__(self, index: Index) -> None:
        self._bytes = np.array([shard.bytes for shard in index.snapshot.shards], np.int64)
        self._step = packs_per_step(index.snapshot)
        self._packs = self._pairs = self._most = 0
        self._fetched = {"pack": 0, "block": 0}
        self._used = 0

    def add(self, first_row: Int64s, samples: pa.Table) -> None:
        """Count in the packs of a window."""
        if not len(self._bytes) or samples["shard"].null_count:
            return
        shard = samples["shard"].to_numpy().astype(np.int64)
        sizes = np.diff(first_row)
        pack = np.repeat(np.arange(len(sizes)), sizes)
        pairs = np.unique(pack * len(self._bytes) + shard)
        each = np.bincount(pairs // len(self._bytes), minlength=len(sizes))
        self._packs += len(sizes)
        self._pairs += len(pairs)
        self._most = max(self._most, int(each.max(initial=0)))
        self._fetched["pack"] += int(self._bytes[pairs % len(self._bytes)].sum())
        if self._step is not None:
            steps = np.unique(pack // self._step * len(self._bytes) + shard)
            self._fetched["block"] += int(self._bytes[steps % len(self._bytes)].sum())
        self._used += int(pc.sum(samples["nbytes"]).as_py() or 0)

    def result(self) -> dict[str, Any] | None:
        """None where the plan does not know shards.

        ``shards_per_pack`` (mean, max), and ``read_amplification``: bytes fetched over bytes of the
        samples, if each ``pack`` fetched all shards that it touches whole, or each ``block`` of the
        packs of a step did; null where the samples' bytes, or the packs of a step, are not known.
        """
        if not self._packs:
            return None
        amplification = {
            name: fetched / self._used if self._used else None
            for name, fetched in self._fetched.items()
        }
        if self._step is None:
            amplification["block"] = None
        mean = self._pairs / self._packs
        return {
            "shards_per_pack": {"mean": mean, "max": self._most},
            "read_amplification": amplification,
        }
