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
from packidx.inspect.stats.idle import RANKS, ScheduledPacks, first_epoch, ranks_stats
from packidx.pack.counts import LengthPairs, exact_dot
from packidx.permutation import KeyedPermutation, permutation

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


_ONE = 1 << 32  # a share of 1 in fixed point: sums of shares are sums of integers
_BIN = 22  # shares are counted in bins of 2^(22 − 32); a share of 1 has a bin of its own
_NUM_BINS = (_ONE >> _BIN) + 1
_POOL_ROWS = 1 << 20  # samples that are shuffled to see what random composition gives


class Composition:
    """Statistics of packs that pass by in runs; memory does not grow with them.

    Args:
        seed: of the shuffle that stands for random composition.
    """

    def __init__(self, seed: int = 0) -> None:
        self._pairs = LengthPairs()
        self._sizes = np.zeros(1, np.int64)  # packs by their number of samples
        self._tokens = np.zeros(0, np.int64)  # of each source
        self._bins = np.zeros((2, 0, _NUM_BINS), np.int64)  # packs and Σ share, by source and share
        self._pool = _Pool(derive_key(seed, "composition"))
        self._has_sources = False

    def add(self, first_row: Int64s, length: Int64s, source: Int64s | None = None) -> None:
        """Count in the next packs.

        Args:
            first_row: int64 [packs + 1], where each begins in the arrays below, and their end.
            length: int [n], tokens of each sample, in 1..2^31.
            source: int [n], the number of its source from 0; None leaves the sources out.
        """
        if first_row[-1] - first_row[0] != len(length):
            raise ValueError(f"{len(length)} lengths for rows {first_row[0]}..{first_row[-1]}")
        tokens = length.astype(np.int64)
        sizes = np.diff(first_row)
        sums = _per_pack(tokens, first_row)
        squares = _per_pack(tokens * tokens, first_row)
        self._pairs.add(np.ones_like(sizes), sizes, sums, squares)
        self._sizes = _plus(self._sizes, np.bincount(sizes))
        if source is not None:
            self._has_sources = True
            if len(tokens):
                self._add_sources(sizes, tokens, source.astype(np.int64))

    def _add_sources(self, sizes: Int64s, tokens: Int64s, source: Int64s) -> None:
        self._pool.add(sizes, tokens, source)
        # Sums of integers below 2^53 in float64: exact in any order.
        self._tokens = _plus(self._tokens, np.bincount(source, tokens).astype(np.int64))
        num_sources = len(self._tokens)
        if self._bins.shape[1] < num_sources:
            grown = np.zeros((2, num_sources, _NUM_BINS), np.int64)
            grown[:, : self._bins.shape[1]] = self._bins
            self._bins = grown
        _, of, share = _shares(sizes, tokens, source, num_sources)
        cell = of * _NUM_BINS + (share >> _BIN)
        size = num_sources * _NUM_BINS
        self._bins[0] += np.bincount(cell, minlength=size).reshape(num_sources, -1)
        np.add.at(self._bins[1].reshape(-1), cell, share)

    def result(self) -> dict[str, object]:
        """``length_correlation`` (float or None), ``samples_per_pack`` (min, p50, p95, max, mean)
        and ``source_distance`` (mean, random; None without sources), of all packs so far.

        Quantiles are nearest ranks. `mean` errs by at most 2^-12 for each source that a pack has,
        not at all for packs of one source. `random` is what the same packs would have, had their
        samples been drawn at random: all of them, or those of a seeded choice of packs with about
        a million samples.
        """
        return {
            "length_correlation": self._pairs.correlation(),
            "samples_per_pack": _quantiles(self._sizes),
            "source_distance": self._distance() if self._has_sources else None,
        }

    def _distance(self) -> dict[str, float | None]:
        num_packs, total = int(self._sizes.sum()), int(self._tokens.sum())
        if not num_packs or not total:
            return {"mean": None, "random": None}
        shares_of_all = np.array([(int(own) << 32) // total for own in self._tokens], np.int64)
        common = 0
        for share, counts, sums in zip(shares_of_all.tolist(), *self._bins, strict=True):
            at = share >> _BIN  # below: min is the pack's share; above: the whole's
            common += int(sums[:at].sum()) + int(counts[at + 1 :].sum()) * share
            common += min(int(sums[at]), int(counts[at]) * share)
        sizes, tokens, source = self._pool.shuffled()
        _, of, drawn = _shares(sizes, tokens, source, len(shares_of_all))
        random = int(np.minimum(drawn, shares_of_all[of]).sum())
        return {
            "mean": max(0.0, 1 - common / (num_packs * _ONE)),
            "random": max(0.0, 1 - random / (len(sizes) * _ONE)) if len(sizes) else None,
        }


class _Pool:
    """Whole packs in the order of their mixed numbers, as many as have `_POOL_ROWS` samples.

    Which packs those are does not depend on how the packs arrive: a pack that falls out never
    belongs to the first again.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._mix = KeyedPermutation.keyed(63, key)
        self._seen = 0
        self._below = np.uint64(1 << 63)
        empty = np.zeros(0, np.int64)
        self._order = empty.astype(np.uint64)
        self._sizes = self._tokens = self._source = empty

    def add(self, sizes: Int64s, tokens: Int64s, source: Int64s) -> None:
        order = self._mix.forward(np.arange(self._seen, self._seen + len(sizes), dtype=np.uint64))
        self._seen += len(sizes)
        kept = order < self._below
        rows = np.repeat(kept, sizes)
        self._order = np.concatenate([self._order, order[kept]])
        self._sizes = np.concatenate([self._sizes, sizes[kept]])
        self._tokens = np.concatenate([self._tokens, tokens[rows]])
        self._source = np.concatenate([self._source, source[rows]])
        if len(self._tokens) > 2 * _POOL_ROWS:
            self._cut()

    def _cut(self) -> None:
        """Sort by mixed number and keep the first packs."""
        by = np.argsort(self._order)
        first = (np.cumsum(self._sizes) - self._sizes)[by]
        sizes, order = self._sizes[by], self._order[by]
        num_kept = max(1, int(np.searchsorted(np.cumsum(sizes), _POOL_ROWS, side="right")))
        if num_kept < len(order):
            self._below = order[num_kept]
        self._order, self._sizes, first = order[:num_kept], sizes[:num_kept], first[:num_kept]
        begin = np.cumsum(self._sizes) - self._sizes
        rows = np.arange(int(self._sizes.sum())) + np.repeat(first - begin, self._sizes)
        self._tokens, self._source = self._tokens[rows], self._source[rows]

    def shuffled(self) -> tuple[Int64s, Int64s, Int64s]:
        """The packs' sizes, and the samples' tokens and sources, those two shuffled."""
        if len(self._order):
            self._cut()
        order = permutation(len(self._tokens), derive_key(self._key, "shuffle"))
        return self._sizes, self._tokens[order], self._source[order]


def _shares(
    sizes: Int64s, tokens: Int64s, source: Int64s, num_sources: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Pack, source and share of the pack's tokens (fixed point), where a pack has that source."""
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
    return pack, source, (own << 32) // total[pack]


def _per_pack(values: Int64s, first_row: Int64s) -> Int64s:
    """Sums over each pack's rows; the running sum may wrap around, differences are right."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    bounds = running[first_row - first_row[0]]
    sums: Int64s = bounds[1:] - bounds[:-1]
    return sums


def _plus(a: Int64s, b: Int64s) -> Int64s:
    """Σ of two arrays of counts, the shorter one continued by zeros."""
    out = np.zeros(max(len(a), len(b)), np.int64)
    out[: len(a)] += a
    out[: len(b)] += b
    return out


def _quantiles(packs_by_size: Int64s) -> dict[str, int | float | None]:
    """Nearest-rank quantiles of the number of samples per pack, and the mean."""
    num_packs = int(packs_by_size.sum())
    if not num_packs:
        return dict.fromkeys(("min", "p50", "p95", "max", "mean"))
    at_most = np.cumsum(packs_by_size)
    ranks = {"min": 1, "p50": -(-num_packs // 2), "p95": -(-num_packs * 19 // 20), "max": num_packs}
    distance: dict[str, int | float | None] = {
        name: int(np.searchsorted(at_most, rank)) for name, rank in ranks.items()
    }
    distance["mean"] = exact_dot(packs_by_size, np.arange(len(packs_by_size))) / num_packs
    return distance
