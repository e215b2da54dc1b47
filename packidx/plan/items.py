"""What is to be packed: whole samples, or pieces of long ones, and what is dropped instead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.errors import OptionError
from packidx.plan.lengths import Lengths
from packidx.plan.options import ResolvedOptions
from packidx.schema import DROPPED, conform

Int64s = NDArray[np.int64]

SUMMED = (
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "num_images",
    "num_videos",
    "vision_patches",
    "vision_cost",
)


@dataclass
class Items:
    """The units that the strategy places, one per piece, ordered by (row, piece).

    Attributes:
        row: int64 [n] into the lengths table.
        length: int64 [n], tokens that the piece takes in its pack.
        piece, token_start: int64 [n], or None when nothing was cut.
        cut: columns whose value a cut has changed: name -> (item numbers, values, is null).
    """

    row: Int64s
    length: Int64s
    piece: Int64s | None = None
    token_start: Int64s | None = None
    cut: dict[str, tuple[Int64s, Int64s, NDArray[np.bool_]]] | None = None

    def column(
        self, lengths: Lengths, name: str, items: Int64s
    ) -> tuple[Int64s, NDArray[np.bool_]]:
        """Counter `name` for `items` (in that order), and where it is unknown."""
        values, null = lengths.ints(name, self.row)
        if self.cut is not None:
            numbers, changed, unknown = self.cut[name]
            values[numbers], null[numbers] = changed, unknown
        return values[items], null[items]


def make_items(lengths: Lengths, options: ResolvedOptions) -> tuple[Items, pa.Table]:
    """Split the table into items that fit a pack and a `dropped` table; nothing is lost.

    Raises:
        OptionError: a sample is too long and `on_long` is ``error``, or all are.
    """
    weight = lengths.length - 1 if options.shift else lengths.length
    ok = np.ones(lengths.num_samples, bool)
    if "status" in lengths.frame.columns:
        ok = lengths.frame.get_column("status").fill_null("").to_numpy() == "ok"
    usable = ok & (weight > 0)
    long = usable & (weight > options.planned_capacity)
    rows = np.flatnonzero(usable & ~long)
    items = Items(rows, weight[rows])
    unplaced = np.flatnonzero(long)
    if len(unplaced) and options.on_long == "error":
        _complain(lengths, unplaced, weight, options)
    if len(unplaced) and options.on_long in ("split", "truncate"):
        items, unplaced = _with_pieces(lengths, items, unplaced, weight, options)
    if not len(items.row) and len(unplaced):
        raise OptionError(
            f"capacity {options.planned_capacity} is below every usable sample of {lengths.uri} "
            f"(the shortest has {int(weight[usable].min())} tokens): raise --capacity"
        )
    return items, _dropped(lengths, ok, weight, unplaced, options)


def _complain(lengths: Lengths, long: Int64s, weight: Int64s, options: ResolvedOptions) -> None:
    worst = int(long[np.argmax(weight[long])])
    key = lengths.take("key", np.array([worst]))[0].as_py()
    name = f"sample {lengths.frame['sample_id'][worst]}" + (f" ({key})" if key else "")
    raise OptionError(
        f"samples longer than {options.planned_capacity} tokens: {len(long)}, the longest is "
        f"{name} with {int(weight[worst])}: raise --capacity or choose another --on-long"
    )


def _dropped(
    lengths: Lengths, ok: NDArray[np.bool_], weight: Int64s, long: Int64s, options: ResolvedOptions
) -> pa.Table:
    kept = f"{options.planned_capacity}"
    if options.planned_capacity != options.capacity:
        kept += f" (capacity {options.capacity} less margin {options.margin:g})"
    cuts = (
        ""
        if options.on_long == "drop"
        else ", and a cut would fall inside media or may, as their place is unknown"
    )
    reason = np.full(lengths.num_samples, None, object)
    detail = np.full(lengths.num_samples, None, object)
    reason[long] = "too_long"
    detail[long] = [f"{int(tokens)} tokens > {kept}{cuts}" for tokens in weight[long]]
    empty = np.flatnonzero(ok & (weight <= 0))
    stated, unknown = lengths.ints("length", empty)
    invalid = unknown | (stated < 0)
    reason[empty] = np.where(invalid, "invalid_length", "empty")
    words = "no token is left to train on" + (" after the shift" if options.shift else "")
    detail[empty] = [
        "length is null" if null else f"length is {value}" if value < 0 else words
        for value, null in zip(stated.tolist(), unknown.tolist(), strict=True)
    ]
    bad = np.flatnonzero(~ok)
    reason[bad] = "rejected"
    if len(bad):
        why, what = lengths.take("reason", bad), lengths.take("detail", bad)
        detail[bad] = [
            ": ".join(part for part in pair if part) or None
            for pair in zip(why.to_pylist(), what.to_pylist(), strict=True)
        ]
    rows = np.sort(np.concatenate([long, empty, bad])).astype(np.int64)
    columns = {name: lengths.take(name, rows) for name in ("sample_id", "source", "key", "length")}
    columns["reason"] = pa.array(reason[rows].tolist(), pa.string())
    columns["detail"] = pa.array(detail[rows].tolist(), pa.string())
    return conform(pa.table(columns), DROPPED)


def _with_pieces(
    lengths: Lengths, whole: Items, long: Int64s, weight: Int64s, options: ResolvedOptions
) -> tuple[Items, Int64s]:
    """Cut long samples; returns all items and the rows that cannot be cut."""
    capacity = options.planned_capacity
    media = _media_of(lengths, long)
    pieces: list[tuple[int, int, int, int]] = []  # row, piece, token_start, length
    sums: list[dict[str, int | None]] = []
    failed = []
    for row, spans in zip(long.tolist(), media, strict=True):
        total = int(weight[row])
        last = capacity if options.on_long == "truncate" else total
        starts = range(0, last, capacity)
        cuts = [start for start in starts if start] + ([last] if last < total else [])
        if spans is None or any(_inside(cut, span) for cut in cuts for span in spans):
            failed.append(row)
            continue
        for number, start in enumerate(starts):
            end = min(start + capacity, last)
            pieces.append((row, number, start, end - start))
            sums.append(_sums_between(spans, start, end))
    rows, piece, starts_at, length = np.array(pieces, np.int64).reshape(-1, 4).T
    items = Items(
        np.concatenate([whole.row, rows]),
        np.concatenate([whole.length, length]),
        np.concatenate([np.zeros_like(whole.row), piece]),
        np.concatenate([np.zeros_like(whole.row), starts_at]),
    )
    numbers = np.arange(len(whole.row), len(items.row))
    items.cut = {}
    for name in SUMMED:
        known = name in lengths.frame.columns
        values = [one[name] if known else None for one in sums]
        null = np.array([value is None for value in values], bool)
        items.cut[name] = (numbers, np.array([value or 0 for value in values], np.int64), null)
    return items, np.array(failed, np.int64)


def _media_of(lengths: Lengths, rows: Int64s) -> list[list[dict[str, int]] | None]:
    """Media spans of each row; None where the table does not say where they stand."""
    if "media" in lengths.frame.columns:
        lists = lengths.frame.get_column("media").gather(rows.astype(np.uint32)).to_list()
        return [
            None if spans is None or not all(map(_is_placed, spans)) else spans for spans in lists
        ]
    if any(name in lengths.frame.columns for name in ("num_images", "num_videos")):
        images, _ = lengths.ints("num_images", rows)
        videos, _ = lengths.ints("num_videos", rows)
        return [None if count else [] for count in (images + videos).tolist()]
    return [[] for _ in rows]  # a bare table knows of no media


def _is_placed(span: dict[str, int] | None) -> bool:
    return span is not None and None not in (span["kind"], span["at"], span["tokens"])


def _inside(cut: int, span: dict[str, int]) -> bool:
    return span["at"] < cut < span["at"] + span["tokens"]


def _sums_between(spans: list[dict[str, int]], start: int, end: int) -> dict[str, int | None]:
    """The counters of one piece; label tokens are known only once it is encoded."""
    sums: dict[str, int | None] = dict.fromkeys(SUMMED, 0)
    sums["label_tokens"] = None
    for span in spans:
        if not start <= span["at"] < end:
            continue
        kind, patches = span["kind"], span["patches"] or 0
        for name, amount in {
            f"{kind}_tokens": span["tokens"],
            f"num_{kind}s": 1,
            "vision_patches": patches,
            "vision_cost": patches * patches // max(span["t"] or 1, 1),
        }.items():
            if name in sums:
                sums[name] = (sums[name] or 0) + amount
    return sums
