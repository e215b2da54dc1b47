"""Numbers about a snapshot's packs: sizes, composition, schedule, and where their samples lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.hashing import derive_key
from packidx.index.order import Epochs, packs_per_step
from packidx.index.reader import Index
from packidx.index.tables import Views
from packidx.inspect.sql import connect
from packidx.inspect.stats.idle import RANKS, ScheduledPacks, first_epoch, ranks_stats
from packidx.pack.counts import LengthPairs
from packidx.permutation import permutation

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
    """Return what only the samples tell, window by window.

    Returns:
        ``composition``: ``length_correlation`` of samples that share a pack (None where nothing
        varies), ``samples_per_pack`` (min, p50, p95, max by nearest rank, and mean) and
        ``source_distance`` (None without sources): how many of a pack's tokens, as a share, are of
        other sources than the whole's, on ``mean``, and at ``random``, had the samples of the first
        packs, about a million, been dealt to them at random;
        ``locality`` (`Locality.result`); and
        ``schedule``: per number of ranks, what `idle.ranks_stats` says of the first epoch.
    """
    names = [source.name for source in index.snapshot.sources]
    windows = index.snapshot.result.windows
    locality, tokens = Locality(index), []
    distance = SourceDistance(_packed_tokens(index, names))
    for number in range(len(windows)):
        progress(f"reading window {number + 1} of {len(windows)}")
        samples = index.window("samples", number, ["length", "source", "shard", "nbytes"])
        sizes = index.window("packs", number, ["num_samples"])["num_samples"].to_numpy()
        sizes = sizes.astype(np.int64)
        if not len(sizes):
            continue
        locality.add(sizes, samples)
        if not names:
            continue
        length = samples["length"].to_numpy().astype(np.int64)
        places = pc.index_in(samples["source"], value_set=pa.array(names, pa.string()))
        source = places.fill_null(len(names)).to_numpy().astype(np.int64)
        distance.add(sizes, length, source)
        if len(names) > 1:
            tokens.append(_by_source(sizes, length, source, index))
    progress("looking at the schedule")
    return {
        "composition": _of_packs(index) | {"source_distance": distance.result() if names else None},
        "locality": locality.result(),
        "schedule": _schedule(index, np.concatenate(tokens) if tokens else None, ranks),
    }


def _of_packs(index: Index) -> dict[str, Any]:
    """Return what the packs' own columns tell of their composition."""
    packs = index.packs(["num_samples", "length", "attention_cost"])
    size, length, squares = (column.to_numpy().astype(np.int64) for column in packs.columns)
    pairs = LengthPairs()
    pairs.add(np.ones_like(size), size, length, squares)
    names, shares = ("min", "p50", "p95", "max"), (0, 0.5, 0.95, 1)
    per_pack: dict[str, int | float | None] = dict.fromkeys((*names, "mean"))
    if len(size):
        found = np.quantile(size, shares, method="inverted_cdf")
        per_pack = dict(zip(names, map(int, found), strict=True)) | {"mean": float(size.mean())}
    return {"length_correlation": pairs.correlation(), "samples_per_pack": per_pack}


def _packed_tokens(index: Index, names: Sequence[str]) -> Int64s:
    """Tokens in packs of each source, and of samples without one, int64 [sources + 1]."""
    with index.local_files("samples") as files:
        rows = connect(Views({"samples": files})).execute(
            "SELECT source, CAST(sum(length) AS BIGINT) FROM samples GROUP BY source"
        )
        tokens = dict(rows.fetchall())
    own = [tokens.pop(name, 0) for name in names]
    return np.array([*own, sum(tokens.values())], np.int64)


def _by_source(sizes: Int64s, length: Int64s, source: Int64s, index: Index) -> Int64s:
    """Tokens of the largest sources in each pack, int64 [packs, sources]."""
    by_size = [
        (-source.num_samples, number) for number, source in enumerate(index.snapshot.sources)
    ]
    largest = [number for _, number in sorted(by_size)[:_SOURCES]]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    running = [
        np.concatenate([[0], np.cumsum(np.where(source == number, length, 0))])[ends]
        for number in largest
    ]
    return np.stack([np.diff(sums) for sums in running], axis=1)


def _schedule(index: Index, sources: Int64s | None, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the order of the first epoch's packs is worth for each number of ranks."""
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

    def add(self, sizes: Int64s, samples: pa.Table) -> None:
        """Count in the packs of a window, of so many samples each."""
        if not len(self._bytes) or samples["shard"].null_count:
            return
        shard = samples["shard"].to_numpy().astype(np.int64)
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


_ONE = 1 << 32  # a share of 1 in fixed point: sums of shares are sums of integers
_DEALT_ROWS = 1 << 20  # samples that are dealt anew to see what random composition gives


class SourceDistance:
    """How far the sources of packs are from those of the whole (total variation distance).

    Args:
        tokens: int64 [sources], of the whole.
    """

    def __init__(self, tokens: Int64s) -> None:
        total = max(1, int(tokens.sum()))
        self._whole = np.array([(int(own) << 32) // total for own in tokens], np.int64)
        self._common = self._num_packs = 0
        self._random: float | None = None

    def add(self, sizes: Int64s, tokens: Int64s, source: Int64s) -> None:
        """Count in the next packs.

        Args:
            sizes: int64 [packs], their samples.
            tokens: int64 [n], of each sample.
            source: int64 [n], its number.
        """
        if not len(tokens):
            return
        if self._random is None:
            ends = np.cumsum(sizes)
            num = max(1, int(np.searchsorted(ends, _DEALT_ROWS, side="right")))
            dealt = permutation(int(ends[num - 1]), derive_key(0, "composition"))
            common = self._shared(sizes[:num], tokens[dealt], source[dealt])
            self._random = max(0.0, 1 - common / (num * _ONE))
        self._common += self._shared(sizes, tokens, source)
        self._num_packs += len(sizes)

    def _shared(self, sizes: Int64s, tokens: Int64s, source: Int64s) -> int:
        """Σ over packs of the share of their tokens that the whole has in the same sources."""
        of, share = _shares(sizes, tokens, source, len(self._whole))
        return int(np.minimum(share, self._whole[of]).sum())

    def result(self) -> dict[str, float | None]:
        """``mean`` and ``random``; None where there is no pack."""
        mean = None
        if self._num_packs:
            mean = max(0.0, 1 - self._common / (self._num_packs * _ONE))
        return {"mean": mean, "random": self._random}


def _shares(
    sizes: Int64s, tokens: Int64s, source: Int64s, num_sources: int
) -> tuple[Int64s, Int64s]:
    """Source and share of the pack's tokens (fixed point), where a pack has that source."""
    pack = np.repeat(np.arange(len(sizes)), sizes)
    cell = pack * num_sources + source
    if len(sizes) * num_sources <= 8 * len(cell) + 1024:
        dense = np.bincount(cell, tokens)
        present = np.flatnonzero(dense)
        own = dense[present].astype(np.int64)
    else:
        present, inverse = np.unique(cell, return_inverse=True)
        own = np.bincount(inverse, tokens).astype(np.int64)
    pack, source = np.divmod(present, num_sources)
    total = np.bincount(pack, own, minlength=len(sizes)).astype(np.int64)
    return source, (own << 32) // total[pack]
