"""What packs are made of: are equals packed with equals, and sources with themselves?

The intra-pack length correlation is the intraclass correlation in its pairwise form (Fisher, 1925,
"Statistical Methods for Research Workers", section 38): Pearson's correlation of the lengths
(x, y) over all ordered pairs of different samples that share a pack. Random packs have about 0,
packs of equals 1. With n samples, S tokens and Q squared tokens in a pack and N = Σ n(n−1) pairs,
mean = Σ (n−1)S / N, E[x²] = Σ (n−1)Q / N and E[xy] = Σ (S² − Q) / N: three sums per pack suffice.

The distance of a pack's sources from the whole's is the total variation distance of their shares
of tokens, 1 − Σ over sources of min(share in the pack, share in the whole).
"""

from __future__ import annotations

import numpy as np

from packidx.arrays import Int64s
from packidx.hashing import derive_key
from packidx.pack.counts import LengthPairs, exact_dot
from packidx.permutation import KeyedPermutation, permutation

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
