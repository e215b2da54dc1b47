"""A snapshot against its own promises: files, sums, and every sample exactly once.

The tables are read window by window, so a snapshot of any size is checked in the memory of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packidx.arrays import Int64s
from packidx.format.index import snapshot_id
from packidx.format.reasons import LOST, lost_percent
from packidx.index.reader import Index
from packidx.index.writer import WindowDigest
from packidx.io import urls
from packidx.io.copies import Part, content_digest, local_copy, overlapped, sizes


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class _Window:
    """The tables of one window, what the manifest says of it, and where it begins."""

    number: int
    stated: dict[str, Any]
    first_row: int
    packs: pa.Table
    samples: pa.Table
    dropped: pa.Table


def verify_snapshot(index: Index) -> Iterator[Check]:
    """Check one snapshot; later checks are left out when its files cannot be read."""
    files = check_files(index)
    yield files
    if not files.ok:
        return
    checks = [
        _Ids(index),
        _Order(index),
        _Sums(index),
        _Limits(index),
        _Once(index),
        _Result(index),
    ]
    for window in _windows(index):
        for check in checks:
            check.look(window)
    for check in checks:
        yield check.verdict()


def check_files(index: Index) -> Check:
    """Every file is there with the bytes, rows and SHA-256 that the manifest names."""
    parts = index.manifest["files"]
    paths = [urls.join(index.place, part["path"]) for part in parts]
    wrong = [
        _fault(path, size, part)
        for path, size, part in zip(paths, sizes(paths), parts, strict=True)
    ]
    sound = [path for path, fault in zip(paths, wrong, strict=True) if fault is None]
    digests = dict(zip(sound, overlapped(content_digest, sound), strict=True))
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        if path in digests:
            wrong[number] = _inner_fault(path, digests[path], part)
    done = f"{len(parts)} files as the manifest has them"
    said = "; ".join(fault for fault in wrong if fault is not None)
    return Check("files", not said, said or done)


def _fault(path: str, size: int | None, part: dict[str, Any]) -> str | None:
    if size is None:
        return f"{path} is missing"
    if size != part["bytes"]:
        return f"{path} has {size} bytes, the manifest says {part['bytes']}"
    return None


def _inner_fault(path: str, found: str, part: dict[str, Any]) -> str | None:
    if found != part["sha256"]:
        return f"{path} has other content than the manifest's sha256"
    with local_copy(Part(path, part["bytes"], part["sha256"])) as copy:
        if pq.read_metadata(copy).num_rows != part["rows"]:
            return f"{path} has other rows than the manifest's {part['rows']}"
    return None


def _windows(index: Index) -> Iterator[_Window]:
    first_row = 0
    for number, stated in enumerate(index.manifest["result"]["windows"]):
        packs, samples, dropped = (
            index.window(name, number) for name in ("packs", "samples", "dropped")
        )
        yield _Window(number, stated, first_row, packs, samples, dropped)
        first_row += samples.num_rows


class _Looker(ABC):
    """One check: `look` at every window, then the verdict. Only the first few faults are told."""

    name = ""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.options, self.result = index.manifest["options"], index.manifest["result"]
        self.wrong: list[str] = []

    @abstractmethod
    def look(self, window: _Window) -> None:
        """Look at the next window; complaints go to `wrong`."""

    @abstractmethod
    def done(self) -> str:
        """What holds, where there is no complaint."""

    def verdict(self) -> Check:
        more = f"; and {len(self.wrong) - 5} more" if len(self.wrong) > 5 else ""
        said = "; ".join(self.wrong[:5]) + more
        return Check(self.name, not self.wrong, said or self.done())

    def unless(self, holds: Any, complaint: str | Callable[[], str]) -> None:
        if not holds:
            self.wrong.append(complaint if isinstance(complaint, str) else complaint())


class _Ids(_Looker):
    """The id is the digest of what the tables hold."""

    name = "id"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._digests: list[str] = []

    def look(self, window: _Window) -> None:
        digest = WindowDigest()
        for table in ("packs", "samples", "dropped"):
            digest.update(table, getattr(window, table))
        self._digests.append(digest.hexdigest())
        stated = window.stated["digest"] == self._digests[-1]
        self.unless(stated, f"the manifest has another digest of window {window.number}")

    def verdict(self) -> Check:
        pairs = zip(self.result["windows"], self._digests, strict=True)
        windows = [{**stated, "digest": found} for stated, found in pairs]
        result = {**self.result, "windows": windows}
        found = snapshot_id({**self.index.manifest, "result": result})
        same = f"the content gives id {found}, the folder says {self.index.id}"
        self.unless(found == self.index.id, same)
        return super().verdict()

    def done(self) -> str:
        return "the id is the digest of the content"


class _Order(_Looker):
    """Packs and positions are dense, samples follow each other."""

    name = "order"

    def look(self, window: _Window) -> None:
        packs, samples = window.packs, window.samples
        first, sizes = _ints(packs, "first_row") - window.first_row, _ints(packs, "num_samples")
        begin = window.stated["first_pack"]
        dense = np.arange(begin, begin + packs.num_rows)
        self.unless(np.array_equal(_ints(packs, "pack_id"), dense), "pack ids are not dense from 0")
        own = (_ints(packs, "window") == window.number).all()
        self.unless(own, f"packs of window {window.number} name another window")
        tiled = sizes.sum() == samples.num_rows and np.array_equal(first, np.cumsum(sizes) - sizes)
        self.unless(tiled, "first_row and num_samples do not tile the samples table")
        if not tiled or not len(sizes):
            return
        sorted_ = np.array_equal(_ints(samples, "pack_id"), np.repeat(dense, sizes))
        self.unless(sorted_, "samples are not sorted by pack_id")
        position = np.arange(samples.num_rows) - np.repeat(first, sizes)
        counted = np.array_equal(_ints(samples, "position"), position)
        self.unless(counted, "positions are not dense from 0 in every pack")
        padded = _ints(samples, "padded_length")
        start = np.cumsum(padded) - padded
        start -= np.repeat(start[first], sizes)
        follows = np.array_equal(_ints(samples, "start"), start)
        self.unless(follows, "samples do not follow each other without gap or overlap")

    def done(self) -> str:
        return "packs and positions dense, samples in order"


class _Sums(_Looker):
    """Counters of packs are the sums over their samples."""

    name = "sums"

    def look(self, window: _Window) -> None:
        packs, samples = window.packs, window.samples
        if not packs.num_rows:
            return
        first = np.clip(_ints(packs, "first_row") - window.first_row, 0, samples.num_rows - 1)
        for name in ("length", "label_tokens"):
            if not packs[name].null_count:
                self._compare(name, np.add.reduceat(_ints(samples, name), first), packs)
        unit = self.options.get("pad_pack_to") or 1
        padded = np.add.reduceat(_ints(samples, "padded_length"), first)
        self._compare("padded_length", -(-padded // unit) * unit, packs)
        squares = np.add.reduceat(_ints(samples, "length") ** 2, first)
        self._compare("attention_cost", squares, packs)
        if samples["media"].null_count:  # somebody's are unknown
            return
        for kind in ("image", "video"):
            if not packs[f"num_{kind}s"].null_count:
                found = np.add.reduceat(_media_inside(samples, kind), first)
                self._compare(f"num_{kind}s", found, packs)

    def _compare(self, name: str, total: Int64s, packs: pa.Table) -> None:
        bad = np.flatnonzero(total != _ints(packs, name))
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
    inside = own & (at >= 0) & (at < _ints(samples, "length")[piece])
    return np.bincount(piece[inside], minlength=len(media)).astype(np.int64)


class _Limits(_Looker):
    """No pack holds more than planned; copies of a sample never share one."""

    name = "capacity"

    def look(self, window: _Window) -> None:
        caps = {
            "padded_length": self.options["planned_capacity"],
            "num_images": self.options.get("max_images"),
            "vision_patches": self.options.get("max_vision_patches"),
            "num_samples": self.options.get("max_samples"),
        }
        for name, cap in caps.items():
            if cap is None:
                continue
            over = np.flatnonzero(_ints(window.packs, name) > cap)
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
        more = "".join(f", {self.options[c]} {c[4:]}" for c in caps if self.options.get(c))
        return f"no pack holds more than {self.options['planned_capacity']} tokens{more}"


class _Once(_Looker):
    """Every sample is in the packs of each epoch or dropped for a reason."""

    name = "every sample once"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._packed = self._dropped = 0
        self._last: int | None = None

    def look(self, window: _Window) -> None:
        dropped = np.sort(_ints(window.dropped, "sample_id"))
        self.unless(not (np.diff(dropped) == 0).any(), "a sample is dropped more than once")
        reasons = window.dropped["reason"].null_count
        self.unless(not reasons, "a sample is dropped without a reason")
        epochs = np.repeat(_ints(window.packs, "epoch"), _ints(window.packs, "num_samples"))
        if len(epochs) != window.samples.num_rows:
            self.wrong.append("packs and samples disagree about the number of samples")
            return
        names = ("sample_id", "copy", "piece")
        rows = np.stack([_ints(window.samples, name) for name in names], axis=1)
        first = None
        for epoch in range(int(self.options.get("epochs") or 1)):
            mine = rows[epochs == epoch]
            mine = mine[np.lexsort(mine.T[::-1])]
            twice = (mine[1:] == mine[:-1]).all(axis=1).any() if len(mine) else False
            self.unless(not twice, "a sample's piece stands in more than one place")
            first = mine if first is None else first
            same = np.array_equal(mine, first)
            self.unless(same, f"epoch {epoch} has other samples than epoch 0")
        placed = np.unique(rows[:, 0])
        both = np.intersect1d(placed, dropped)
        if len(both):
            self.wrong.append(f"sample {both[0]} is both packed and dropped ({len(both)} samples)")
        self._count(window, placed, dropped)

    def _count(self, window: _Window, placed: Int64s, dropped: Int64s) -> None:
        self._packed += len(placed)
        self._dropped += len(dropped)
        ids = np.concatenate([placed, dropped])
        if len(ids) != window.stated["num_rows"]:
            self.wrong.append(
                f"{len(placed)} packed + {len(dropped)} dropped != {window.stated['num_rows']} "
                f"samples of window {window.number}"
            )
        if len(ids):
            self.unless(
                self._last is None or ids.min() > self._last,
                f"window {window.number} has samples of the one before",
            )
            self._last = int(ids.max())

    def done(self) -> str:
        total = self._packed + self._dropped
        return f"{self._packed} packed + {self._dropped} dropped = {total} samples, each once"


class _Result(_Looker):
    """The manifest's result is what the tables hold."""

    name = "result"

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        keys = ["num_packs", "num_tokens", "num_dropped", "num_samples", "num_pieces"]
        keys.append("num_tokens_dropped")
        self._lost = 0
        self._found: Counter[str] = Counter(dict.fromkeys(keys, 0))
        self._epochs: list[list[list[int]]] = [[] for _ in range(self.options.get("epochs") or 1)]
        self._reasons: Counter[str] = Counter()

    def look(self, window: _Window) -> None:
        first, epochs = window.stated["first_pack"], _ints(window.packs, "epoch")
        for epoch, ranges in enumerate(self._epochs):
            at = np.flatnonzero(epochs == epoch)
            if len(at):
                ranges.append([first + int(at[0]), len(at)])
        self._reasons.update(window.dropped["reason"].to_pylist())
        self._found["num_packs"] += window.packs.num_rows
        self._found["num_tokens"] += int(_ints(window.packs, "length").sum())
        self._found["num_dropped"] += window.dropped.num_rows
        length = _ints(window.dropped, "length").clip(0)
        self._found["num_tokens_dropped"] += int(length.sum())
        lost = pc.is_in(window.dropped["reason"], pa.array(LOST)).to_numpy()
        self._lost += int((length[lost] - bool(self.options["shift"])).sum())
        self._found["num_pieces"] += window.samples.num_rows
        self._found["num_samples"] += len(np.unique(_ints(window.samples, "sample_id")))

    def verdict(self) -> Check:
        for name, value in self._found.items():
            said = f"{name} is {value}, the manifest says {self.result[name]}"
            self.unless(value == self.result[name], said)
        bound, packs = self.result["lower_bound"], self._found["num_packs"]
        self.unless(bound <= packs, f"lower bound {bound} is above {packs} packs")
        self._derived()
        rows = sum(one["num_rows"] for one in self.result["windows"])
        total = self.index.manifest["lengths"]["num_samples"]
        self.unless(rows == total, f"windows have {rows} samples, the lengths {total}")
        return super().verdict()

    def _derived(self) -> None:
        """What the manifest makes of the numbers."""
        packs, bound = self._found["num_packs"], self.result["lower_bound"]
        tokens = packs * self.options["capacity"]
        wanted = {
            "gap": packs - bound,
            "gap_percent": 100 * (packs - bound) / max(bound, 1),
            "fill": self._found["num_tokens"] / tokens if tokens else 0,
            "dropped": dict(self._reasons),
            "lost_percent": lost_percent(self.result),
        }
        if not self.options["continues"] and self.options["on_long"] != "truncate":
            wanted["num_tokens_lost"] = self._lost
        if "epochs" in self.result:
            wanted["epochs"] = self._epochs
        for name, value in wanted.items():
            said = self.result.get(name)
            self.unless(said == value, f"{name} is {value}, the manifest says {said}")
        block, asked = self.result["schedule_block"], self.options["global_batch"]
        self.unless(
            asked is None or self.options["schedule"] == "random" or block == asked,
            f"schedule_block is {block}, planned for was a global batch of {asked}",
        )

    def done(self) -> str:
        return "the manifest's result is what the tables hold"


def _ints(table: pa.Table, name: str) -> Int64s:
    values: Int64s = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return values
