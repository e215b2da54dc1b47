"""An order of one's own: packs by the mean rank of their samples in a column.

1. Rank the samples by the column, equal values alike, and take the mean rank of each pack.
2. Sort the packs by it and cut them into optimizer steps; within a step the packs are mixed, and
   its micro-steps cost about the same.
3. The packs behind the last whole step are a seeded random choice, so that they are not always
   those of one end.
4. How far the order was kept is the correlation of a sample's rank with the place of its pack:
   packing puts samples of all ranks together.

Three packs of samples with the values (1, 9), (2, 3) and (4, 8) have mean ranks 3.5, 2.5 and 4.5 of
6, and stand as second, first and third.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from packidx.arrays import Float64s, Int32s, Int64s
from packidx.errors import FormatError, OptionError
from packidx.format.schema import LENGTHS
from packidx.hashing import derive_key
from packidx.lengths.table import LengthsRows
from packidx.packing.slots import Slots
from packidx.permutation import draw_permutation
from packidx.plan.schedule import micro_steps_by_cost
from packidx.plan.select.rules import read_named_samples

PREFIX = "by:"


@dataclass(frozen=True, slots=True)
class Ranking:
    """What packs are sorted by.

    Attributes:
        column: its name.
        named: rows of the file that has it, with the columns that name samples; None if the
            lengths table has it.
    """

    column: str
    named: pl.DataFrame | None = None

    def rank_samples(self, rows: LengthsRows, packed: Int32s) -> Int64s:
        """Return twice the rank of each of the `packed` rows; equal values have their mean rank.

        Raises:
            FormatError: one of them has no value, or the lengths do not name samples so.
        """
        if self.named is None:
            values = rows.frame.get_column(self.column)
        else:
            names = [name for name in self.named.columns if name != self.column]
            frame = rows.frame
            if "sample_id" in names and "sample_id" not in frame.columns:
                frame = frame.with_columns(sample_id=pl.Series(rows.sample_id))
            if absent := [name for name in names if name not in frame.columns]:
                raise FormatError(
                    f"--order names samples by `{absent[0]}`, which {rows.uri} does not have: name"
                    " them by sample_id"
                )
            joined = frame.select(names).join(
                self.named, on=names, how="left", maintain_order="left"
            )
            values = joined.get_column(self.column)
        if values.dtype.is_float():
            values = values.fill_nan(None)
        values = values.gather(packed)
        if missing := values.null_count():
            raise FormatError(
                f"{missing:,} samples of {rows.uri} have no {self.column}, by which packs are to be"
                " ordered: give every sample a number"
            )
        return (2 * values.rank("average").to_numpy()).astype(np.int64)


def read_ranking(schedule: str, path: str | None, known: list[str]) -> Ranking | None:
    """Return what ``--schedule by:COLUMN`` and ``--order FILE`` name; None for other schedules.

    Args:
        schedule: of the plan.
        path: Parquet with `key` (and `source`) or `sample_id`, and the column.
        known: columns of the lengths table.

    Raises:
        OptionError: there is no such column of numbers, or a file without a schedule for it.
        SourceError, FormatError: the file cannot be read, or does not name samples once each.
    """
    if not schedule.startswith(PREFIX):
        if path is not None:
            raise OptionError("--order needs --schedule by:COLUMN, a column of the file")
        return None
    column = schedule.removeprefix(PREFIX)
    if path is None:
        own = [name for name in known if name in _NUMBERS]
        if column not in own:
            raise OptionError(
                f"--schedule {schedule}: the lengths have no number {column!r}, but"
                f" {', '.join(own)}; name a Parquet file that has it with --order"
            )
        return Ranking(column)
    named = read_named_samples("order", path, column)
    if not named.get_column(column).dtype.is_numeric():
        raise OptionError(f"--order {path}: {column} is no number: cast it first")
    keys = [name for name in named.columns if name != column]
    if twice := named.height - named.select(keys).n_unique():
        raise FormatError(f"--order {path} names {twice:,} samples twice: give each one row")
    return Ranking(column, named)


_NUMBERS = {
    field.name for field in LENGTHS if str(field.type).startswith(("int", "uint", "double"))
} - {"sample_id", "shard", "row", "offset", "nbytes"}


def order_packs(
    slots: Slots, ranks: Int64s, costs: tuple[Float64s, Float64s], steps: tuple[int, int], key: int
) -> tuple[Int64s, float]:
    """Return the packs in the order of training, int64 [packs], and how far ranks are kept.

    Args:
        slots: of all items.
        ranks: int64 [items].
        costs: of each pack in the language model and in the vision tower, float64 [packs].
        steps: packs of an optimizer step, and its micro-steps.
        key: of the seeded choice of the packs that fill no step.
    """
    block, micro_steps = steps
    of_slot = ranks[slots.item]
    sums = np.bincount(slots.pack, of_slot, slots.num_packs)
    means = sums / np.bincount(slots.pack, minlength=slots.num_packs)
    order = np.argsort(means, kind="stable")
    left = draw_permutation(len(order), derive_key(key, "rest"))[: len(order) % block]
    rest = np.sort(left)
    whole = np.delete(order, rest).reshape(-1, block)
    own, chunk = np.arange(block), block // micro_steps
    mixed = [
        step[micro_steps_by_cost(costs[0][step], costs[1][step], own, chunk).ravel()]
        for step in whole
    ]
    order = np.concatenate([*mixed, order[rest]])
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    places = place[slots.pack]
    if not np.ptp(of_slot) or not np.ptp(places):
        return order, 1.0
    return order, round(float(np.corrcoef(of_slot, places)[0, 1]), 6)
