"""What is in no pack: samples, and why, in words; and tokens that training has not had either."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Int32s, Int64s, Ints
from packidx.format.parquet import conform
from packidx.format.schema import DROPPED
from packidx.lengths.rows import LengthsRows
from packidx.plan.options.resolved import ResolvedOptions
from packidx.plan.select.eligible import Copies, Verdicts
from packidx.plan.select.sides import of_pairs, paired_rows


def dropped(
    rows: LengthsRows, verdicts: Verdicts, weight: Int32s, options: ResolvedOptions
) -> pa.Table:
    """What is in no pack, in order of sample_id (schema `DROPPED`)."""
    numbers = verdicts.dropped()
    if not len(numbers):
        return DROPPED.empty_table()
    reasons = verdicts.reasons(numbers)
    details = _details(rows, numbers, reasons.to_pylist(), weight, options)
    return _table(rows, numbers, reasons, details)


def _table(
    rows: LengthsRows, numbers: Ints, reasons: pa.Array, details: list[str | None]
) -> pa.Table:
    columns = {name: rows.take(name, numbers) for name in ("sample_id", "source", "key", "length")}
    columns["reason"] = reasons
    columns["detail"] = pa.array(details, pa.string())
    return conform(pa.table(columns), DROPPED)


def _details(
    rows: LengthsRows,
    numbers: Int64s,
    reasons: Sequence[str],
    weight: Int32s,
    options: ResolvedOptions,
) -> list[str | None]:
    """What exactly is wrong, where the reason does not say it all."""
    detail = np.full(len(numbers), None, object)
    words = np.array(reasons, object)
    long = np.flatnonzero(words == "too_long")
    kept = f"{options.longest}"
    if options.longest != options.capacity:
        kept += f" (capacity {options.capacity} less margin {options.margin:g})"
    if options.on_long in ("split", "truncate"):
        kept += ", and where its media stand is unknown, or no text before or between them fits"
    detail[long] = [
        f"{tokens} tokens > {kept}"
        if tokens > options.longest
        else "the shift would cut its last medium"
        for tokens in weight[numbers[long]].tolist()
    ]
    empty = np.flatnonzero(words == "empty")
    detail[empty] = "no token is left to train on" + (" after the shift" if options.shift else "")
    invalid = np.flatnonzero(words == "invalid_length")
    if len(invalid):
        stated, null = rows.ints("length", numbers[invalid])
        unknown = np.zeros(len(stated), bool) if null is None else null
        detail[invalid] = [
            "length is null" if absent else f"length is {value}"
            for value, absent in zip(stated.tolist(), unknown.tolist(), strict=True)
        ]
    bad = np.flatnonzero(words == "rejected")
    if len(bad):
        pair = (rows.take(name, numbers[bad]).to_pylist() for name in ("reason", "detail"))
        detail[bad] = [
            ": ".join(part for part in both if part) or None for both in zip(*pair, strict=True)
        ]
    for name, cap in options.caps.items():
        capped = np.flatnonzero(words == f"max_{name.removeprefix('num_')}")
        if len(capped):
            values, _ = rows.ints(name, numbers[capped])
            detail[capped] = [f"{value} > {cap} per pack" for value in values.tolist()]
    if len(rows.chosen):
        _tell_of_pairs(detail, rows, numbers, words, weight, options)
    details: list[str | None] = detail.tolist()
    return details


def _tell_of_pairs(
    detail: NDArray[np.object_],
    rows: LengthsRows,
    numbers: Int64s,
    words: NDArray[np.object_],
    weight: Int32s,
    options: ResolvedOptions,
) -> None:
    """Say of samples that are a side of a pair what is wrong with the pair, in `detail`."""
    paired = paired_rows(rows)[numbers]
    tokens = of_pairs(rows, weight.astype(np.int64))[numbers]
    for at in np.flatnonzero(paired & (words == "too_long")):
        detail[at] = f"a pair of {tokens[at]} tokens > {options.longest}, and pairs are never cut"
    for name, cap in options.caps.items():
        values = np.full(len(numbers), 2)
        if name in rows.frame.columns:
            values = of_pairs(rows, rows.ints(name)[0])[numbers]
        for at in np.flatnonzero(paired & (words == f"max_{name.removeprefix('num_')}")):
            detail[at] = f"a pair of {values[at]} > {cap} per pack"
    detail[paired & (words == "excluded")] = "a pair is left out as a whole"
    sound = rows.is_ok()[numbers] & (weight[numbers] > 0)
    unsound = np.isin(words, ("rejected", "invalid_length", "empty"))
    detail[paired & sound & unsound] = "the other side of its pair"


def dropped_with(
    dropped: pa.Table, rows: LengthsRows, numbers: Ints, reason: str, detail: str
) -> pa.Table:
    """`dropped` with more rows of the lengths table, all for one reason, by sample_id."""
    more = _table(rows, numbers, pa.repeat(reason, len(numbers)), [detail] * len(numbers))
    return pa.concat_tables([dropped, more]).sort_by("sample_id")


Ranges = tuple[Int64s, Int64s, Int64s]
"""Rows, and the first token and the one after the last of a range in each."""


def uncovered(rows: Int64s, weight: Int32s, ranges: list[Ranges]) -> Int64s:
    """Tokens of each of `rows` that are in none of `ranges`, int64 [rows].

    Args:
        rows: ascending.
        weight: int32 [all rows], tokens of each.
        ranges: of any rows, in any order; they may overlap.
    """
    row, start, stop = (np.concatenate(part).astype(np.int64) for part in zip(*ranges, strict=True))
    mine = np.isin(row, rows)
    row, start, stop = row[mine], start[mine], stop[mine]
    order = np.lexsort((start, row))
    row, begin, end = row[order], start[order], stop[order]
    # Places in the table as one number each; no range reaches into the next row.
    begin, end = row << 32 | begin, row << 32 | end
    before = np.maximum.accumulate(np.r_[np.int64(0), end])[:-1]
    fresh = np.maximum(end - np.maximum(begin, before), 0)
    covered = np.zeros(len(rows), np.int64)
    np.add.at(covered, np.searchsorted(rows, row), fresh)
    return weight[rows] - covered


def trained(copies: Copies, weight: Int32s) -> list[Ranges]:
    """The tokens that training has had."""
    row, start, stop = copies.trained
    return [(row, start, np.minimum(stop, weight[row]))]


def shortened(copies: Copies, weight: Int32s) -> Int64s:
    """Rows of which training has had a copy that was cut or truncated."""
    row, start, stop = copies.trained
    return row[(start > 0) | (stop < weight[row])]
