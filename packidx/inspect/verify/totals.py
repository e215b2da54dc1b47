"""Checks of what all windows sum up to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.format.terms import LOST, lost_percent
from packidx.index.reader import Index
from packidx.inspect.verify.check import Check, Looker, Window, ints, number_of


class Once(Looker):
    """Every sample is in the packs of each epoch or dropped for a reason."""

    name = "every sample once"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._last: int | None = None

    def look(self, window: Window) -> None:
        dropped = np.sort(ints(window.dropped, "sample_id"))
        again = dropped[1:][np.diff(dropped) == 0]
        self.unless(not len(again), lambda: f"sample {again[0]} is dropped {_more(again)}")
        reasons = window.dropped["reason"].null_count
        self.unless(not reasons, f"{reasons:,} samples are dropped without a reason")
        epochs = np.repeat(ints(window.packs, "epoch"), ints(window.packs, "num_samples"))
        if len(epochs) != window.samples.num_rows:
            self.wrong.append(
                f"packs hold {len(epochs):,} samples, the table has {window.samples.num_rows:,}"
            )
            return
        names = ("sample_id", "copy", "piece")
        rows = np.stack([ints(window.samples, name) for name in names], axis=1)
        first = None
        for epoch in range(self.options.epochs):
            mine = rows[epochs == epoch]
            mine = mine[np.lexsort(mine.T[::-1])]
            twice = mine[1:][(mine[1:] == mine[:-1]).all(axis=1)] if len(mine) else mine
            if len(twice):
                self.wrong.append(f"sample {twice[0, 0]} is packed {_more(twice)}")
            first = mine if first is None else first
            if not np.array_equal(mine, first):
                self.wrong.append(
                    f"epoch {epoch} has {len(mine):,} samples, others than epoch 0's {len(first):,}"
                )
        placed = np.unique(rows[:, 0])
        both = np.intersect1d(placed, dropped)
        if len(both):
            said = f"both packed and dropped ({number_of(len(both), 'samples')})"
            self.wrong.append(f"sample {both[0]} is {said}")
        self._count(window, placed, dropped)

    def _count(self, window: Window, placed: Int64s, dropped: Int64s) -> None:
        self.numbers["packed"] += len(placed)
        self.numbers["dropped"] += len(dropped)
        ids = np.concatenate([placed, dropped])
        if len(ids) != window.stated.num_rows:
            self.wrong.append(
                f"{len(placed):,} packed + {len(dropped):,} dropped, the manifest says "
                f"{window.stated.num_rows:,} samples of window {window.number}"
            )
        if len(ids):
            self.unless(
                self._last is None or ids.min() > self._last,
                f"window {window.number} has samples of the one before",
            )
            self._last = int(ids.max())

    def done(self) -> str:
        packed, dropped = self.numbers["packed"], self.numbers["dropped"]
        total = number_of(packed + dropped, "samples")
        return f"{packed:,} packed + {dropped:,} dropped = {total}, each once"


def _more(rows: Any) -> str:
    """How often what stands in `rows` is there again."""
    return f"more than once ({number_of(len(rows), 'cases')})"


class Result(Looker):
    """The manifest's result is what the tables hold."""

    name = "result"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        keys = ["num_packs", "num_tokens", "num_dropped", "num_samples", "num_pieces"]
        keys.append("num_tokens_dropped")
        self._lost = 0
        self._found: Counter[str] = Counter(dict.fromkeys(keys, 0))
        self._epochs: list[list[tuple[int, int]]] = [[] for _ in range(self.options.epochs)]
        self._reasons: Counter[str] = Counter()

    def look(self, window: Window) -> None:
        first, epochs = window.stated.first_pack, ints(window.packs, "epoch")
        for epoch, ranges in enumerate(self._epochs):
            at = np.flatnonzero(epochs == epoch)
            if len(at):
                ranges.append((first + int(at[0]), len(at)))
        self.numbers["rows"] += sum(t.num_rows for t in (window.packs, window.samples))
        self.numbers["rows"] += window.dropped.num_rows
        self._reasons.update(window.dropped["reason"].to_pylist())
        self._found["num_packs"] += window.packs.num_rows
        self._found["num_tokens"] += int(ints(window.packs, "length").sum())
        self._found["num_dropped"] += window.dropped.num_rows
        length = ints(window.dropped, "length").clip(0)
        self._found["num_tokens_dropped"] += int(length.sum())
        lost = pc.is_in(window.dropped["reason"], pa.array(LOST)).to_numpy()
        self._lost += int((length[lost] - bool(self.options.shift)).sum())
        self._found["num_pieces"] += window.samples.num_rows
        self._found["num_samples"] += len(np.unique(ints(window.samples, "sample_id")))

    def verdict(self) -> Check:
        for name, value in self._found.items():
            self._compare(name, value, getattr(self.result, name))
        bound, packs = self.result.lower_bound, self._found["num_packs"]
        self.unless(bound <= packs, f"lower bound {bound} is above {packs} packs")
        self._derived()
        rows = sum(window.num_rows for window in self.result.windows)
        total = self.index.snapshot.lengths.num_samples
        self.unless(rows == total, f"windows have {rows:,} samples, the lengths {total:,}")
        self.numbers["compared"] += 2
        return super().verdict()

    def _compare(self, name: str, actual: Any, stated: Any) -> None:
        self.numbers["compared"] += 1
        self.unless(actual == stated, f"{name} is {actual}, the manifest says {stated}")

    def _derived(self) -> None:
        """What the manifest makes of the numbers."""
        packs, bound = self._found["num_packs"], self.result.lower_bound
        tokens = packs * self.options.capacity
        wanted: dict[str, Any] = {
            "gap": packs - bound,
            "gap_percent": 100 * (packs - bound) / max(bound, 1),
            "fill": self._found["num_tokens"] / tokens if tokens else 0,
            "dropped": dict(self._reasons),
            "lost_percent": lost_percent(
                self.result.num_tokens_lost, self.result.num_tokens_eligible
            ),
        }
        cut = self.result.num_tokens_cut  # of every copy, and what is lost is counted once
        if not self.options.continues and not (cut and self.options.weights):
            wanted["num_tokens_lost"] = self._lost + cut
        if self.result.epochs is not None:
            wanted["epochs"] = tuple(map(tuple, self._epochs))
        for name, value in wanted.items():
            self._compare(name, value, getattr(self.result, name))
        block, asked = self.result.schedule_block, self.options.global_batch
        self.unless(
            asked is None or self.options.schedule == "random" or block == asked,
            f"schedule_block is {block}, planned for was a global batch of {asked}",
        )

    def done(self) -> str:
        numbers, rows = self.counted("compared", "numbers"), self.counted("rows")
        return f"{numbers} of the manifest, as counted over {rows}"
