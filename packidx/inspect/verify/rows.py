"""Checks of the rows, window by window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.format.index import snapshot_id
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
