"""Samples that a plan dropped as too long: what they hold, and what cutting them would keep."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from packidx.arrays import Int64s
from packidx.errors import PackidxError
from packidx.format.index import Options
from packidx.index.reader import Index
from packidx.lengths.rows import LengthsRows
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.resolved import ResolvedOptions, inherited
from packidx.plan.select.eligible import Rules
from packidx.plan.select.make_items import make_items

_MEDIA = {"videos": "num_videos", "images": "num_images", "audio": "audio_tokens"}


@dataclass(frozen=True, slots=True)
class TooLong:
    """What the lengths table says of the samples that were dropped as too long.

    Attributes:
        with_media: how many hold videos, images or audio, each counted by the first of these that
            it holds; ``"text"`` counts those that hold none.
        kept_tokens: of their tokens, those that ``--on-long split`` would put into packs, by the
            planner's own rule; None where that depends on more than these samples.
    """

    with_media: dict[str, int]
    kept_tokens: int | None


def too_long(index: Index, sample_ids: Int64s) -> TooLong | None:
    """Look up the dropped samples `sample_ids`, int64 in order of windows, in the lengths table.

    Returns:
        None where the table is not there any more, has changed, or has no manifest that tells.
    """
    planned = index.snapshot.lengths
    try:
        table = read_lengths(index.resolve(planned.uri))
        if table.manifest is None or table.fingerprint() != planned.fingerprint:
            return None
        return _look_up(index, table, np.sort(sample_ids))
    except (PackidxError, OSError):
        return None  # what cannot be looked up is not told


def _look_up(index: Index, table: Lengths, sample_ids: Int64s) -> TooLong | None:
    options = split_options(index.snapshot.options)
    kinds = dict.fromkeys((*_MEDIA, "text"), 0)
    num_found, kept = 0, 0
    for window in index.snapshot.result.windows:
        rows = table.read(window.first_row, window.first_row + window.num_rows)
        rows = _only(rows, sample_ids)
        num_found += rows.num_rows
        _count_kinds(rows, kinds)
        if options is not None and rows.num_rows:
            kept += _kept(rows, options)
    if num_found != len(sample_ids):
        return None
    held = {name: number for name, number in kinds.items() if number}
    return TooLong(held, None if options is None else kept)


def split_options(options: Options) -> ResolvedOptions | None:
    """`options` with ``on_long`` split; None where what is kept depends on more than the samples.

    What training has had, and what a draw of packs leaves out, is not looked at here.
    """
    if options.continues or options.max_packs is not None:
        return None
    known = {each.name for each in fields(ResolvedOptions)}
    values = {name: value for name, value in inherited(options).items() if name in known}
    values |= {"on_long": "split", "mix": (), "cost": None, "holdout": None}
    values["margin"] = options.margin
    return ResolvedOptions(**values, planned_capacity=options.planned_capacity)


def _only(rows: LengthsRows, sample_ids: Int64s) -> LengthsRows:
    """Those of `rows` that have one of `sample_ids`, which are in order."""
    mine = np.isin(rows.sample_id, sample_ids)
    frame = rows.frame
    if "sample_id" not in frame.columns:
        frame = frame.with_columns(sample_id=pl.Series(rows.sample_id))
    return LengthsRows(rows.uri, rows.start, frame.filter(pl.Series(mine)), rows.places)


def _count_kinds(rows: LengthsRows, kinds: dict[str, int]) -> None:
    left = np.ones(rows.num_rows, bool)
    for name, column in _MEDIA.items():
        values, _ = rows.ints(column)
        kinds[name] += int((left & (values > 0)).sum())
        left &= values == 0
    kinds["text"] += int(left.sum())


def _kept(rows: LengthsRows, options: ResolvedOptions) -> int:
    """Tokens of `rows` that are in a pack once long samples are split, each counted once."""
    items, _ = make_items(rows, options, Rules())
    return items.num_eligible - int(items.lost[1].sum())
