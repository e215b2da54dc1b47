"""Checks of the rows, window by window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from packidx.arrays import Int64s
from packidx.format.index import snapshot_id
from packidx.format.terms import LOST, lost_percent
from packidx.index.reader import Index
from packidx.index.window_files import WindowDigest
from packidx.inspect.verify.check import Check, Looker, Window, ints, number_of, short


class Ids(Looker):
    """The id is the digest of what the tables hold."""

    name = "id"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._digests: list[str] = []

    def look(self, window: Window) -> None:
        digest = WindowDigest()
        for name in ("packs", "samples", "dropped"):
            table = getattr(window, name)
            digest.update(name, table)
            self.numbers["rows_hashed"] += table.num_rows
        own, stated = digest.hexdigest(), window.stated.digest
        self._digests.append(own)
        self.numbers["windows"] += 1
        said = f"digest {short(own)}…, the manifest says {short(stated)}…"
        self.unless(own == stated, f"window {window.number} has {said}")

    def verdict(self) -> Check:
        pairs = zip(self.result.windows, self._digests, strict=True)
        windows = tuple(replace(stated, digest=digest) for stated, digest in pairs)
        snapshot = replace(self.index.snapshot, result=replace(self.result, windows=windows))
        own = snapshot_id(snapshot.to_json())
        same = f"the content gives id {short(own)}…, the folder says {short(self.index.id)}…"
        self.unless(own == self.index.id, same)
        return super().verdict()

    def done(self) -> str:
        windows = self.counted("windows") + " of " if self.numbers["windows"] > 1 else ""
        rows = self.counted("rows_hashed", "rows")
        return f"{windows}{rows} hashed: {short(self.index.id)}… is the id of this content"


class Order(Looker):
    """Packs and positions are dense, samples follow each other."""

    name = "order"

    def look(self, window: Window) -> None:
        packs, samples = window.packs, window.samples
        first, sizes = ints(packs, "first_row") - window.first_row, ints(packs, "num_samples")
        self.numbers["packs"] += packs.num_rows
        self.numbers["samples"] += samples.num_rows
        begin = window.stated.first_pack
        dense = np.arange(begin, begin + packs.num_rows)
        self._follow("pack_id", ints(packs, "pack_id"), dense, dense)
        own = np.full(packs.num_rows, window.number)
        self._follow("window", ints(packs, "window"), own, dense)
        rows = f"packs hold {sizes.sum():,} samples, the table has {samples.num_rows:,}"
        self.unless(sizes.sum() == samples.num_rows, rows)
        tiled = self._follow("first_row", first, np.cumsum(sizes) - sizes, dense)
        if not tiled or sizes.sum() != samples.num_rows or not len(sizes):
            return
        packs_of = np.repeat(dense, sizes)
        self._follow("pack_id of a sample", ints(samples, "pack_id"), packs_of, packs_of)
        position = np.arange(samples.num_rows) - np.repeat(first, sizes)
        self._follow("position", ints(samples, "position"), position, packs_of)
        padded = ints(samples, "padded_length")
        start = np.cumsum(padded) - padded
        start -= np.repeat(start[first], sizes)
        self._follow("start", ints(samples, "start"), start, packs_of)

    def _follow(self, name: str, actual: Int64s, expected: Int64s, packs: Int64s) -> bool:
        """Whether rows have the values that follow from those before; complains of the first."""
        wrong = np.flatnonzero(actual != expected)
        if len(wrong):
            at = int(wrong[0])
            self.wrong.append(
                f"{name} in pack {packs[at]} is {actual[at]}, not {expected[at]} as by the rows "
                f"before ({len(wrong):,} rows)"
            )
        return not len(wrong)

    def done(self) -> str:
        packs, samples = self.counted("packs"), self.counted("samples")
        return f"{packs} from 0 on, {samples} without a gap or an overlap"


class Sums(Looker):
    """Counters of packs are the sums over their samples."""

    name = "sums"

    def look(self, window: Window) -> None:
        packs, samples = window.packs, window.samples
        if not packs.num_rows:
            return
        self.numbers["packs"] += packs.num_rows
        self.numbers["samples"] += samples.num_rows
        first = np.clip(ints(packs, "first_row") - window.first_row, 0, samples.num_rows - 1)
        for name in ("length", "label_tokens"):
            if not packs[name].null_count:
                self._compare(name, np.add.reduceat(ints(samples, name), first), packs)
        unit = self.options.pad_pack_to or 1
        padded = np.add.reduceat(ints(samples, "padded_length"), first)
        self._compare("padded_length", -(-padded // unit) * unit, packs)
        squares = np.add.reduceat(ints(samples, "length") ** 2, first)
        self._compare("attention_cost", squares, packs)
        if samples["media"].null_count:  # somebody's are unknown
            return
        for kind in ("image", "video"):
            if not packs[f"num_{kind}s"].null_count:
                sums = np.add.reduceat(_media_inside(samples, kind), first)
                self._compare(f"num_{kind}s", sums, packs)

    def _compare(self, name: str, total: Int64s, packs: pa.Table) -> None:
        self.numbers["sums"] += len(total)
        stated = ints(packs, name)
        bad = np.flatnonzero(total != stated)
        if len(bad):
            at = int(bad[0])
            self.wrong.append(
                f"pack {packs['pack_id'][at]}: {name} is {stated[at]:,}, over its samples "
                f"{total[at]:,} ({number_of(len(bad), 'packs')})"
            )

    def done(self) -> str:
        packs, samples = self.counted("packs"), self.counted("samples")
        return f"{self.counted('sums')} of {packs}, as added up over {samples}"


def _media_inside(samples: pa.Table, kind: str) -> Int64s:
    """Media of a kind that stand inside each piece, int64 [n]."""
    media = samples["media"].combine_chunks()
    values = media.flatten()
    piece = np.repeat(np.arange(len(media)), media.value_lengths().to_numpy())
    at = values.field("at").fill_null(0).to_numpy()
    own = pc.equal(values.field("kind"), kind).fill_null(False).to_numpy(zero_copy_only=False)
    inside = own & (at >= 0) & (at < ints(samples, "length")[piece])
    return np.bincount(piece[inside], minlength=len(media)).astype(np.int64)


class Limits(Looker):
    """No pack holds more than planned; copies of a sample never share one."""

    name = "capacity"

    def look(self, window: Window) -> None:
        caps = {
            "padded_length": self.options.planned_capacity,
            "num_images": self.options.max_images,
            "vision_patches": self.options.max_vision_patches,
            "num_samples": self.options.max_samples,
        }
        for name, cap in caps.items():
            if cap is None:
                continue
            values = ints(window.packs, name)
            self.numbers["compared"] += len(values)
            over = np.flatnonzero(values > cap)
            if len(over):
                pack = window.packs.slice(int(over[0]), 1)
                self.wrong.append(
                    f"pack {pack['pack_id'][0]} has {name} {pack[name][0].as_py():,}, "
                    f"at most are {cap:,} ({number_of(len(over), 'packs')})"
                )
        fullest = pc.max(window.packs["padded_length"]).as_py() or 0
        self.numbers["packs"] += window.packs.num_rows
        self.numbers["fullest"] = max(self.numbers["fullest"], fullest)
        if pc.any(pc.greater(window.samples["copy"], 0)).as_py():
            rows = window.samples.select(["pack_id", "sample_id", "copy"])
            apart = rows.group_by(["pack_id", "sample_id"]).aggregate([("copy", "count_distinct")])
            together = apart.filter(pc.greater(apart["copy_count_distinct"], 1))
            if together.num_rows:
                first = together.slice(0, 1)
                self.wrong.append(
                    f"pack {first['pack_id'][0]} holds {first['copy_count_distinct'][0]} copies of "
                    f"sample {first['sample_id'][0]} ({number_of(together.num_rows, 'cases')})"
                )

    def done(self) -> str:
        caps = ("max_images", "max_vision_patches", "max_samples")
        more = "".join(
            f", {getattr(self.options, name)} {name[4:]}"
            for name in caps
            if getattr(self.options, name)
        )
        fullest, most = self.numbers["fullest"], self.options.planned_capacity
        packs = self.counted("packs")
        return f"{packs}, the fullest has {fullest:,} tokens of at most {most:,}{more}"


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
