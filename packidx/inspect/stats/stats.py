"""Numbers about a snapshot's packs: sizes, composition, schedule, and where their samples lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.index.order import Epochs, packs_per_step
from packidx.index.reader import Index
from packidx.inspect.stats.composition import Composition
from packidx.inspect.stats.idle import RANKS, ScheduledPacks, first_epoch, ranks_stats

_COLUMNS = (
    "num_samples",
    "length",
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "num_images",
    "vision_patches",
    "attention_cost",
)
_SOURCES = 16  # the largest ones, whose shares per step are told


def pack_stats(index: Index) -> dict[str, dict[str, float]]:
    """Minimum, median, 95th percentile, maximum and mean per pack, of every known column."""
    table = index.packs(_COLUMNS)
    out = {}
    for name in _COLUMNS:
        values = table[name].drop_null().to_numpy()
        if len(values) < table.num_rows or not len(values) or not values.any():
            continue
        quantiles = np.quantile(values, [0, 0.5, 0.95, 1], method="nearest")
        numbers = [*(float(quantile) for quantile in quantiles), float(values.mean())]
        out[name] = dict(zip(("min", "p50", "p95", "max", "mean"), numbers, strict=True))
    return out


def sample_stats(
    index: Index, progress: Callable[[str], None] = lambda doing: None, ranks: Sequence[int] = RANKS
) -> dict[str, Any]:
    """What only the samples tell, window by window.

    Returns:
        ``composition`` (`composition.Composition.result`), ``locality`` (`Locality.result`) and
        ``schedule``: per number of ranks, what `idle.ranks_stats` says of the first epoch.
    """
    names = [source.name for source in index.snapshot.sources]
    windows = index.snapshot.result.windows
    composition, locality, tokens = Composition(), Locality(index), []
    for number in range(len(windows)):
        progress(f"reading window {number + 1} of {len(windows)}")
        samples = index.window("samples", number, ["length", "source", "shard", "nbytes"])
        sizes = index.window("packs", number, ["num_samples"])["num_samples"].to_numpy()
        if not len(sizes):
            continue
        first_row = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        length = samples["length"].to_numpy().astype(np.int64)
        source = _numbers(samples["source"], names) if names else None
        composition.add(first_row, length, source)
        locality.add(first_row, samples)
        if source is not None and len(names) > 1:
            tokens.append(_by_source(first_row, length, source, index, names))
    progress("looking at the schedule")
    return {
        "composition": composition.result(),
        "locality": locality.result(),
        "schedule": _schedule(index, np.concatenate(tokens) if tokens else None, ranks),
    }


def _numbers(column: pa.ChunkedArray, names: list[str]) -> Int64s:
    places = pc.index_in(column, value_set=pa.array(names, pa.string()))
    numbers: Int64s = places.fill_null(len(names)).to_numpy().astype(np.int64)
    return numbers


def _by_source(
    first_row: Int64s, length: Int64s, source: Int64s, index: Index, names: list[str]
) -> Int64s:
    """Tokens of the largest sources in each pack, int64 [packs, sources]."""
    sizes = [(-source.num_samples, number) for number, source in enumerate(index.snapshot.sources)]
    largest = [number for _, number in sorted(sizes)[:_SOURCES]]
    running = [
        np.concatenate([[0], np.cumsum(np.where(source == number, length, 0))])[first_row]
        for number in largest
    ]
    return np.stack([np.diff(sums) for sums in running], axis=1)


def _schedule(index: Index, sources: Int64s | None, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """What the order of the first epoch's packs is worth for each number of ranks."""
    columns, llm, vit = first_epoch(index, ["image_tokens", "video_tokens"])
    mine = Epochs.of(index.snapshot).scheduled(0)
    known = [columns[name] for name in ("image_tokens", "video_tokens") if name in columns]
    vision = sum(known[1:], known[0]) if known else None
    scheduled = ScheduledPacks(
        llm, vit, columns["length"], vision, None if sources is None else sources[mine]
    )
    return ranks_stats(scheduled, packs_per_step(index.snapshot) or 1, ranks)


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
