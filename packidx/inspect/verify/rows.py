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
from packidx.inspect.verify.check import Check, Looker, Window, ints


class Ids(Looker):
    """The id is the digest of what the tables hold."""

    name = "id"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._digests: list[str] = []

    def look(self, window: Window) -> None:
        digest = WindowDigest()
        for table in ("packs", "samples", "dropped"):
            digest.update(table, getattr(window, table))
        self._digests.append(digest.hexdigest())
        stated = window.stated.digest == self._digests[-1]
        self.unless(stated, f"the manifest has another digest of window {window.number}")

    def verdict(self) -> Check:
        pairs = zip(self.result.windows, self._digests, strict=True)
        windows = tuple(replace(stated, digest=digest) for stated, digest in pairs)
        snapshot = replace(self.index.snapshot, result=replace(self.result, windows=windows))
        own = snapshot_id(snapshot.to_json())
        same = f"the content gives id {own}, the folder says {self.index.id}"
        self.unless(own == self.index.id, same)
        return super().verdict()

    def done(self) -> str:
        return "the id is the digest of the content"


class Order(Looker):
    """Packs and positions are dense, samples follow each other."""

    name = "order"

    def look(self, window: Window) -> None:
        packs, samples = window.packs, window.samples
        first, sizes = ints(packs, "first_row") - window.first_row, ints(packs, "num_samples")
        begin = window.stated.first_pack
        dense = np.arange(begin, begin + packs.num_rows)
        self.unless(np.array_equal(ints(packs, "pack_id"), dense), "pack ids are not dense from 0")
        own = (ints(packs, "window") == window.number).all()
        self.unless(own, f"packs of window {window.number} name another window")
        tiled = sizes.sum() == samples.num_rows and np.array_equal(first, np.cumsum(sizes) - sizes)
        self.unless(tiled, "first_row and num_samples do not tile the samples table")
        if not tiled or not len(sizes):
            return
        sorted_ = np.array_equal(ints(samples, "pack_id"), np.repeat(dense, sizes))
        self.unless(sorted_, "samples are not sorted by pack_id")
        position = np.arange(samples.num_rows) - np.repeat(first, sizes)
        counted = np.array_equal(ints(samples, "position"), position)
        self.unless(counted, "positions are not dense from 0 in every pack")
        padded = ints(samples, "padded_length")
        start = np.cumsum(padded) - padded
        start -= np.repeat(start[first], sizes)
        follows = np.array_equal(ints(samples, "start"), start)
        self.unless(follows, "samples do not follow each other without gap or overlap")

    def done(self) -> str:
        return "packs and positions dense, samples in order"


class Sums(Looker):
    """Counters of packs are the sums over their samples."""

    name = "sums"

    def look(self, window: Window) -> None:
        packs, samples = window.packs, window.samples
        if not packs.num_rows:
            return
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
        bad = np.flatnonzero(total != ints(packs, name))
        if len(bad):
            pack = packs["pack_id"][int(bad[0])]
            self.wrong.append(
                f"pack {pack}: {name} is not the sum over its samples ({len(bad)} packs)"
            )

    def done(self) -> str:
        return "pack counters are the sums over their samples"


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
            over = np.flatnonzero(ints(window.packs, name) > cap)
            if len(over):
                pack = window.packs.slice(int(over[0]), 1)
                self.wrong.append(
                    f"pack {pack['pack_id'][0]} has {pack[name][0]} > {cap} {name} "
                    f"({len(over)} packs)"
                )
        if pc.any(pc.greater(window.samples["copy"], 0)).as_py():
            rows = window.samples.select(["pack_id", "sample_id", "copy"])
            apart = rows.group_by(["pack_id", "sample_id"]).aggregate([("copy", "count_distinct")])
            together = pc.sum(pc.greater(apart["copy_count_distinct"], 1)).as_py()
            self.unless(not together, f"{together} packs hold two copies of one sample")

    def done(self) -> str:
        caps = ("max_images", "max_vision_patches", "max_samples")
        more = "".join(
            f", {getattr(self.options, name)} {name[4:]}"
            for name in caps
            if getattr(self.options, name)
        )
        return f"no pack holds more than {self.options.planned_capacity} tokens{more}"
