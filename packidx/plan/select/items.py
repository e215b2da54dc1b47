"""Items to pack: whole samples, copies of them, pieces of long ones; the rest is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s, Ints
from packidx.errors import FormatError, OptionError
from packidx.format.index import Options
from packidx.format.parquet import conform_table
from packidx.format.schema import DROPPED
from packidx.format.terms import LOST, NOT_ELIGIBLE, WITH_MEDIA
from packidx.hashing import derive_key, hash_ints
from packidx.lengths.table import LengthsRows
from packidx.plan.memory import memory_units
from packidx.plan.options import parse_share
from packidx.plan.select.mixture import copies_of
from packidx.plan.select.pieces import Pieces, cut_into_pieces, expand_ranges
from packidx.plan.select.rules import Rules, is_held_out

# In the order in which they are looked for: the first that holds is the one that is recorded.
REASONS = (
    *("", "rejected", "invalid_length", "empty", "excluded", "consumed", "holdout", "train", "mix"),
    *("too_long", "no_labels", "max_images", "max_vision_patches", "max_samples", "max_memory"),
)
# What a lengths table calls the column that a cap is on.
_CAPPED = {"num_images": "--max-images", "vision_patches": "--max-vision-patches"}
_CAPPED |= {"num_samples": "--max-samples", "memory": "--memory"}
_COLUMNS = ("row", "length", "padded", "copy", "piece", "token_start")
_NONE = np.empty(0, np.int64)

Number = TypeVar("Number", bound=np.generic)


class DropReasons:
    """A reason for every row, int8 [n] into `REASONS`: 0 where it is to be packed."""

    def __init__(self, num_rows: int) -> None:
        self._code = np.zeros(num_rows, np.int8)

    def usable(self) -> Bools:
        """bool [n]: nothing speaks against the row."""
        return np.equal(self._code, 0)

    def set(self, rows: Int64s | Int32s | Bools, reason: str) -> None:
        """Drop `rows` (numbers or a mask) for `reason`, unless they are dropped already."""
        code = REASONS.index(reason)
        if rows.dtype == bool:
            self._code[rows & (self._code == 0)] = code
        else:
            self._code[rows] = np.where(self._code[rows] == 0, code, self._code[rows])

    def dropped(self) -> Int64s:
        """Row numbers, ascending."""
        return np.flatnonzero(self._code)

    def of(self, reasons: Sequence[str]) -> Int64s:
        """Numbers of the rows that are dropped for one of `reasons`, ascending."""
        dropped = self.dropped()
        wanted = np.isin(np.arange(len(REASONS)), [REASONS.index(reason) for reason in reasons])
        return dropped[wanted[self._code[dropped]]]

    def names(self, rows: Int64s) -> pa.Array:
        """The reason of each of `rows`."""
        codes = pa.array(self._code[rows])
        return pa.DictionaryArray.from_arrays(codes, pa.array(REASONS)).cast(pa.string())


@dataclass
class Items:
    """The items that are packed, samples or pieces of them, in order of (row, copy, piece).

    Attributes:
        row: int32 [samples] into `rows` of the lengths table.
        length: int32 [samples], tokens of the piece.
        padded: int32 [samples], tokens that it takes in its pack.
        copy, piece, token_start: int32 [samples], or None if all are 0.
        num_whole: number of samples, the first ones, that are whole; pieces follow.
        labels: label tokens of the pieces, and where they are unknown; each other counter of a
            piece is its sample's.
        num_cut: tokens of packed samples that no piece has, of every copy: behind a truncation, and
            pieces without a label token.
        num_eligible: tokens of all eligible samples (`packidx.format.terms`), each counted once.
        num_lost: eligible tokens that are in no pack, each counted once.
    """

    rows: LengthsRows
    row: Int32s
    length: Int32s
    padded: Int32s
    copy: Int32s | None = None
    piece: Int32s | None = None
    token_start: Int32s | None = None
    num_whole: int = 0
    labels: tuple[Int64s, Bools] = (_NONE, np.empty(0, bool))
    num_cut: int = 0
    num_eligible: int = 0
    num_lost: int = 0

    @property
    def num_samples(self) -> int:
        """Rows of the samples table in one epoch."""
        return len(self.row)

    @cached_property
    def are_all_rows(self) -> bool:
        """Return whether sample i is the whole of row i, for all of them."""
        last = self.num_samples - 1
        same = self.num_samples == self.rows.num_rows and self.num_whole == self.num_samples
        return same and (last < 0 or bool((self.row == np.arange(last + 1)).all()))

    def column(self, name: str) -> tuple[Int64s, Bools | None] | None:
        """Counter `name` of every sample and where it is unknown; None if it is nowhere
        known."""
        if name == "num_samples":
            return np.ones(self.num_samples, np.int64), None
        if name not in self.rows.frame.columns:
            return None
        values, null = self.rows.ints(name, self.row)
        if name == "label_tokens" and self.num_whole < self.num_samples:
            more, unknown = self.labels
            null = np.zeros(len(values), bool) if null is None else null
            values[self.num_whole :], null[self.num_whole :] = more, unknown
        return values, null

    def caps(self, options: Options) -> dict[str, tuple[Int64s, int]]:
        """Name -> what each item has of it, and the most that a pack may have, of every cap.

        Raises:
            OptionError: a cap is on a column that is not known.
        """
        caps = {name: (self._known(name, cap), cap) for name, cap in options.caps.items()}
        if options.memory is not None:
            needed = options.memory.per_patch > 0
            patches = self._known("vision_patches") if needed else np.zeros_like(self.padded)
            caps["memory"] = memory_units(options, self.padded, patches)
        return caps

    def _known(self, name: str, cap: int | None = None) -> Int64s:
        """A counter of every item that a cap needs."""
        column = self.column(name)
        option = "--memory-model" if cap is None else f"{_CAPPED[name]} {cap}"
        if column is None:
            raise OptionError(
                f"{option} needs the column `{name}`, which {self.rows.uri} does not have: "
                "leave it out"
            )
        values, null = column
        if null is not None and null.any():
            raise OptionError(
                f"{option}: {int(null.sum())} samples of {self.rows.uri} do not say their "
                f"`{name}`: leave it out or count them"
            )
        return values

    @property
    def squares(self) -> NDArray[np.float64]:
        """float64 [samples], length²."""
        return self.length.astype(np.float64) ** 2

    def select(self, keep: Bools) -> Items:
        """Return the items that `keep` marks."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        kept = {name: values[keep] for name, values in columns.items() if values is not None}
        pieces = keep[self.num_whole :]
        labels, unknown = self.labels
        return replace(
            self,
            **kept,
            num_whole=int(keep[: self.num_whole].sum()),
            labels=(labels[pieces], unknown[pieces]),
        )


def make_items(rows: LengthsRows, options: Options, rules: Rules) -> tuple[Items, pa.Table]:
    """Split rows of the table into items that fit a pack and a `dropped` table; nothing is lost.

    Raises:
        OptionError: a sample is too long and `on_long` is ``error``, or a cap is on a column that
            is not known.
    """
    weight = rows.length
    reasons, number = drop_ineligible(rows, options, rules)
    usable = reasons.usable()
    _check_labels(rows, usable)
    long = usable & (weight > options.longest)
    fitting = np.arange(len(long), dtype=np.int32)
    row, copy = _repeat_rows(fitting if (fits := usable & ~long).all() else fitting[fits], number)
    length = weight if len(row) == len(weight) and copy is None else weight[row]
    items = Items(rows, row, length, options.padded(length), copy, num_whole=len(row))
    left_over = np.flatnonzero(long)
    if len(left_over) and options.on_long == "error":
        worst = int(left_over[np.argmax(weight[left_over])])
        key = rows.arrow("key", np.array([worst]))[0].as_py()
        name = f"sample {rows.sample_id[worst]}" + (f" ({key})" if key else "")
        raise OptionError(
            f"samples longer than {options.longest} tokens: {len(left_over)}, the longest is "
            f"{name} with {int(weight[worst])}: raise --capacity or choose another --on-long"
        )
    if options.on_long in ("split", "truncate"):
        of_long, copy = _repeat_rows(left_over, number)
        copies = np.zeros(len(of_long), np.int64) if copy is None else copy.astype(np.int64)
        is_cut = options.on_long == "truncate"
        pieces, uncut = cut_into_pieces(rows, of_long, copies, options.longest, only_first=is_cut)
        items = _append_pieces(items, pieces, options) if len(pieces.row) else items
        reasons.set(uncut.no_labels, "no_labels")
        left_over = uncut.too_long
    reasons.set(left_over, "too_long")
    items = _within_caps(items, options, reasons)
    _count_lost(items, reasons, number)
    return items, _dropped_table(rows, reasons, options)


def drop_ineligible(
    rows: LengthsRows, options: Options, rules: Rules
) -> tuple[DropReasons, Int64s | None]:
    """Return what is dropped before lengths and caps are checked, and copies per row, int64 [n];
    None if each row is packed once."""
    reasons, weight = DropReasons(rows.num_rows), rows.length
    reasons.set(~rows.is_ok(), "rejected")
    if (weight <= 0).any():
        stated, null = rows.ints("length")
        reasons.set((stated < 0) if null is None else null | (stated < 0), "invalid_length")
        reasons.set(weight <= 0, "empty")
    if rules.exclude is not None:
        reasons.set(rules.exclude.of(rows), "excluded")
    for reason, samples in rules.before.items():
        reasons.set(np.isin(rows.sample_id, samples), reason)
    number = None
    if options.weights:
        number, source = np.ones(rows.num_rows, np.int64), rows.frame.get_column("source")
        draws = hash_ints(rows.draws(), derive_key(options.seed, "mix"))
        for name, weight_of in options.weights.items():
            mine = (source == name).fill_null(False).to_numpy()
            number[mine] = copies_of(Fraction(weight_of), draws[mine])
    if options.holdout is not None:
        of = rows.arrow("source") if "source" in rows.frame.columns else None
        out = is_held_out(of, rows.own_keys(), rows.draws(), parse_share(options.holdout))
        is_train = options.side == "train"
        reasons.set(out if is_train else ~out, "holdout" if is_train else "train")
    if number is not None:
        reasons.set(number == 0, "mix")
    return reasons, number


def _repeat_rows(
    rows: NDArray[Number], number: Int64s | None
) -> tuple[NDArray[Number], Int32s | None]:
    """Return `rows`, each as often as `number` says, and the copies' numbers; None if all are 0."""
    if number is None:
        return rows, None
    times = number[rows]
    copy, owner = expand_ranges(np.zeros_like(times), times)
    return rows[owner], copy.astype(np.int32)


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


def _append_pieces(items: Items, pieces: Pieces, options: Options) -> Items:
    zeros = np.zeros(items.num_samples, np.int32)

    def concat_column(before: Int32s | None, after: Ints) -> Int32s:
        return np.concatenate([zeros if before is None else before, after.astype(np.int32)])

    copy, length = concat_column(items.copy, pieces.copy), pieces.length.astype(np.int32)
    return Items(
        items.rows,
        concat_column(items.row, pieces.row),
        concat_column(items.length, length),
        concat_column(items.padded, options.padded(length)),
        copy if copy.any() else None,
        concat_column(None, pieces.piece),
        concat_column(None, pieces.token_start),
        items.num_samples,
        (pieces.label_tokens, pieces.labels_unknown),
    )


def _within_caps(items: Items, options: Options, reasons: DropReasons) -> Items:
    """The items of samples none of which breaks a cap by itself."""
    keep = np.ones(items.num_samples, bool)
    for name, (values, cap) in items.caps(options).items():
        rows = np.unique(items.row[values > cap])
        if len(rows):
            reasons.set(rows, f"max_{name.removeprefix('num_')}")
            keep &= ~np.isin(items.row, rows)
    return items if keep.all() else items.select(keep)


def _count_lost(items: Items, reasons: DropReasons, number: Int64s | None) -> None:
    """Set in `items` how many tokens are eligible, and how many are cut off or lost."""
    left_out, whole = reasons.of(NOT_ELIGIBLE), reasons.of(LOST)
    tokens = items.rows.length.astype(np.int64)
    items.num_eligible = int(tokens.sum() - tokens[left_out].sum())
    items.num_lost = int(tokens[whole].sum())
    if items.num_whole < items.num_samples:
        packed = np.bincount(items.row, items.length, len(tokens)).astype(np.int64)
        copies = np.ones_like(tokens) if number is None else np.maximum(number, 1)
        cut = np.where(packed > 0, tokens * copies - packed, 0)
        items.num_cut = int(cut.sum())
        items.num_lost += int((cut // copies).sum())


def _dropped_table(rows: LengthsRows, reasons: DropReasons, options: Options) -> pa.Table:
    """Return what is in no pack, in order of sample_id (schema `DROPPED`)."""
    numbers = reasons.dropped()
    if not len(numbers):
        return DROPPED.empty_table()
    names = reasons.names(numbers)
    columns = {name: rows.arrow(name, numbers) for name in ("sample_id", "source", "key", "length")}
    details = _describe_drops(rows, numbers, np.array(names.to_pylist(), object), options)
    columns |= {"reason": names, "detail": pa.array(details, pa.string())}
    return conform_table(pa.table(columns), DROPPED)


def _describe_drops(
    rows: LengthsRows, numbers: Int64s, reasons: NDArray[np.object_], options: Options
) -> list[str | None]:
    """Return what exactly is wrong, where the reason does not say it all."""
    detail, weight = np.full(len(numbers), None, object), rows.length

    def describe_reason(reason: str, values: Ints, what: str) -> Bools:
        mine: Bools = np.equal(reasons, reason).astype(bool)
        detail[mine] = values[numbers[mine]].astype(str).astype(object) + what
        return mine

    kept = f" tokens > {options.longest}"
    if options.longest != options.capacity:
        kept += f" (capacity {options.capacity} less margin {options.margin:g})"
    long = describe_reason("too_long", weight, kept)
    long[long] = rows.may_hold_media(numbers[long])
    detail[long] += WITH_MEDIA
    describe_reason(
        "no_labels", weight, " tokens; no part of it that fits a pack has a label token"
    )
    for name, cap in options.caps.items():
        values = rows.ints(name)[0] if name in rows.frame.columns else np.ones_like(weight)
        describe_reason(f"max_{name.removeprefix('num_')}", values, f" > {cap} per pack")
    if (limit := options.memory) is not None:
        detail[reasons == "max_memory"] = f"more than {limit.limit:,} bytes by itself"
    detail[reasons == "empty"] = "no token is left to train on"
    invalid = np.flatnonzero(reasons == "invalid_length")
    stated = rows.arrow("length", numbers[invalid]).to_pylist()
    detail[invalid] = [f"length is {'null' if n is None else n}" for n in stated]
    bad = np.flatnonzero(reasons == "rejected")
    said = (rows.arrow(name, numbers[bad]).to_pylist() for name in ("reason", "detail"))
    detail[bad] = [": ".join(filter(None, both)) or None for both in zip(*said, strict=True)]
    details: list[str | None] = detail.tolist()
    return details
