"""How rows of the lengths table become items, or are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.errors import FormatError, OptionError
from packidx.format.index import Options
from packidx.format.parquet import conform
from packidx.format.schema import DROPPED
from packidx.format.terms import LOST, NOT_ELIGIBLE
from packidx.lengths.rows import LengthsRows
from packidx.plan.select.eligible import Copies, Rules, Verdicts, judge
from packidx.plan.select.items import Items, fold, of_pairs, paired_rows
from packidx.plan.select.pieces import Pieces, Stretches, cut_into_pieces, select

# What a lengths table calls the column that a cap is on.
_CAPPED = {"num_images": "--max-images", "vision_patches": "--max-vision-patches"}


def make_items(rows: LengthsRows, options: Options, rules: Rules) -> tuple[Items, pa.Table]:
    """Split rows of the table into items that fit a pack and a `dropped` table; nothing is lost.

    Raises:
        OptionError: a sample is too long and `on_long` is ``error``, or a cap is on a column that
            is not known.
    """
    weight = rows.length - 1 if options.shift else rows.length
    verdicts, copies = judge(rows, weight, options, rules)
    usable = verdicts.usable()
    _check_labels(rows, usable)
    rows.check_media(usable)
    if options.shift:
        verdicts.set(rows.end_with_media(), "too_long")
        verdicts.join(rows.chosen)
        usable = verdicts.usable()
    paired = paired_rows(rows)
    long = usable & (_tokens(rows, weight, options) > options.longest)
    fits = usable & ~long & ~copies.is_partial
    fits[rows.chosen + 1] = False  # they are in the items of the chosen sides
    fitting = np.arange(len(fits), dtype=np.int32)
    fitting = fitting if fits.all() else fitting[fits]
    items = _whole_samples(rows, fitting, weight, options, copies)
    left_over = np.flatnonzero(long)
    if len(left_over) and options.on_long == "error":
        _complain(rows, left_over, weight, options)
    if options.on_long in ("split", "truncate") or copies.is_partial.any():
        chosen = np.flatnonzero((long & ~paired | copies.is_partial) & usable)
        items, left_over = _with_pieces(items, chosen, weight, options, copies)
        left_over = np.union1d(left_over, np.flatnonzero(long & paired))
    verdicts.set(left_over, "too_long")
    items = _within_caps(_folded(items, weight, options), options, verdicts)
    verdicts.join(rows.chosen)
    _count_lost(items, verdicts, weight, copies)
    return items, dropped(rows, verdicts, weight, options)


def _check_labels(rows: LengthsRows, usable: Bools) -> None:
    if "label_tokens" not in rows.frame.columns:
        return
    labels, _ = rows.ints("label_tokens")
    wrong = np.flatnonzero(usable & (labels > rows.length))
    if len(wrong):
        first = int(wrong[0])
        raise FormatError(
            f"{rows.uri}: sample {rows.sample_id[first]} has {labels[first]} label_tokens of "
            f"{rows.length[first]} tokens ({len(wrong)} such samples): correct them"
        )


def _tokens(rows: LengthsRows, weight: Int32s, options: Options) -> Ints:
    """Tokens that each row needs together with the other side of its pair, [n]."""
    if not len(rows.chosen):
        return weight
    both = of_pairs(rows, options.padded(weight.astype(np.int64)))
    return np.where(paired_rows(rows), both, weight)


def _folded(items: Items, weight: Int32s, options: Options) -> Items:
    """`items` with the rejected sides of pairs in those of the chosen ones."""
    rows = items.rows
    if not len(rows.chosen):
        return items
    lengths = items.length, items.padded
    length, padded, folded = fold(rows, items.row, items.num_whole, lengths, weight, options)
    return replace(items, length=length, padded=padded, folded=folded)


def _whole_samples(
    rows: LengthsRows, chosen: Int32s, weight: Int32s, options: Options, copies: Copies
) -> Items:
    """Every copy of the chosen rows."""
    chosen, copy = copies.of(chosen)
    length = weight if len(chosen) == len(weight) and copy is None else weight[chosen]
    return Items(rows, chosen, length, options.padded(length), copy, num_whole=len(chosen))


def _with_pieces(
    items: Items, chosen: Int64s, weight: Int32s, options: Options, copies: Copies
) -> tuple[Items, Int64s]:
    """`items` and the pieces of the chosen rows; returns the rows that cannot be cut, too."""
    stretches = copies.stretches(chosen, weight)
    too_long = np.empty(0, np.int64)
    if options.on_long not in ("split", "truncate"):
        over = options.padded(stretches.stop - stretches.start) > options.longest
        too_long = np.unique(stretches.sample[over])
        stretches = select(stretches, ~np.isin(stretches.sample, too_long))
    truncate = options.on_long == "truncate"
    pieces, failed = cut_into_pieces(
        items.rows, stretches, options.longest, only_first=truncate, shift=options.shift
    )
    left_over = np.union1d(failed, too_long)
    if not len(pieces.row):
        return items, left_over
    return _joined(items, pieces, options, _left_out(stretches, pieces)), left_over


def _left_out(stretches: Stretches, pieces: Pieces) -> tuple[Int64s, Int64s]:
    """Rows that have pieces, but not of all tokens of their stretches; and how many are in none."""
    rows = np.unique(pieces.row)
    tokens = np.zeros(len(rows), np.int64)
    np.subtract.at(tokens, np.searchsorted(rows, pieces.row), pieces.length)
    asked = select(stretches, np.isin(stretches.sample, rows))
    np.add.at(tokens, np.searchsorted(rows, asked.sample), asked.stop - asked.start)
    return rows[tokens > 0], tokens[tokens > 0]


def _joined(
    items: Items, pieces: Pieces, options: Options, left_out: tuple[Int64s, Int64s]
) -> Items:
    zeros = np.zeros(items.num_items, np.int32)

    def join(before: Int32s | None, after: Int64s) -> Int32s:
        return np.concatenate([zeros if before is None else before, after.astype(np.int32)])

    copy = join(items.copy, pieces.copy)
    length = pieces.length.astype(np.int32)
    return Items(
        items.rows,
        np.concatenate([items.row, pieces.row.astype(np.int32)]),
        np.concatenate([items.length, length]),
        np.concatenate([items.padded, options.padded(length)]),
        copy if copy.any() else None,
        join(None, pieces.piece),
        join(None, pieces.token_start),
        items.num_items,
        pieces.sums,
        left_out,
    )


def _within_caps(items: Items, options: Options, verdicts: Verdicts) -> Items:
    """The items of samples none of which breaks a cap by itself."""
    keep = np.ones(items.num_items, bool)
    for name, cap in options.caps.items():
        column = items.column(name)
        option = _CAPPED.get(name, "--max-samples")
        if column is None:
            raise OptionError(
                f"{option} {cap} needs the column `{name}`, which {items.rows.uri} does not have: "
                "leave the cap out"
            )
        values, null = column
        if null is not None and null.any():
            raise OptionError(
                f"{option} {cap}: {int(null.sum())} samples of {items.rows.uri} do not say their "
                f"`{name}`: leave the cap out or count them"
            )
        rows = np.unique(items.row[values > cap])
        if len(rows):
            verdicts.set(rows, f"max_{name.removeprefix('num_')}")
            keep &= ~np.isin(items.row, rows)
    return items if keep.all() else items.select(keep)


def _count_lost(items: Items, verdicts: Verdicts, weight: Int32s, copies: Copies) -> None:
    """State in `items` how many tokens were to be packed, and which of them are not."""
    left_out = verdicts.of(NOT_ELIGIBLE)
    every = int(np.maximum(weight, 0).sum(dtype=np.int64))
    items.num_eligible = every - int(np.maximum(weight[left_out], 0).sum(dtype=np.int64))
    rows = np.r_[verdicts.of(LOST), rows_cut_short(copies, weight), items.left_out[0]]
    rows = np.setdiff1d(rows, left_out)
    if not len(rows):
        return
    samples = items.samples
    row, length, first = samples.row.astype(np.int64), samples.length, samples.token_start
    start = np.zeros_like(row) if first is None else first.astype(np.int64)
    ranges = [*trained(copies, weight), (row, start, start + length)]
    items.lost = rows, uncovered(rows, weight, ranges)


def _complain(rows: LengthsRows, long: Int64s, weight: Ints, options: Options) -> None:
    weight = of_pairs(rows, weight.astype(np.int64))
    worst = int(long[np.argmax(weight[long])])
    key = rows.take("key", np.array([worst]))[0].as_py()
    name = f"sample {rows.sample_id[worst]}" + (f" ({key})" if key else "")
    if paired_rows(rows)[worst]:
        name += " and the other side of its pair"
    raise OptionError(
        f"samples longer than {options.longest} tokens: {len(long)}, the longest is "
        f"{name} with {int(weight[worst])}: raise --capacity or choose another --on-long"
    )


def dropped(rows: LengthsRows, verdicts: Verdicts, weight: Int32s, options: Options) -> pa.Table:
    """Return what is in no pack, in order of sample_id (schema `DROPPED`)."""
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
    options: Options,
) -> list[str | None]:
    """Return what exactly is wrong, where the reason does not say it all."""
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
    options: Options,
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


def rows_cut_short(copies: Copies, weight: Int32s) -> Int64s:
    """Rows of which training has had a copy that was cut or truncated."""
    row, start, stop = copies.trained
    return row[(start > 0) | (stop < weight[row])]
