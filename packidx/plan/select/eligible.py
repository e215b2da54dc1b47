"""Which rows are to be packed, and how often: a reason or a number of copies for every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from packidx.arrays import Bools, Int32s, Int64s, Uint64s
from packidx.digests import canonical_json, column_digest, digest
from packidx.errors import FormatError, SourceError
from packidx.format.index import Options
from packidx.hashing import below, derive_key, hash_ints, hash_strings, splitmix64s
from packidx.io.urls import absolute
from packidx.lengths.rows import LengthsRows
from packidx.plan.options import parse_share
from packidx.plan.select.mixture import copies as copies_of
from packidx.plan.select.pieces import (
    SIDES,
    Stretches,
    distinct_pairs,
    expand_ranges,
    in_order,
    joined_columns,
    pairs_in,
    select,
)

_KEYED = derive_key("holdout", "key")
_PLACED = derive_key("holdout", "place")
_NAMES = ("source", "key", "sample_id")


def holdout(
    source: pa.Array | pa.ChunkedArray | None,
    key: pa.Array | pa.ChunkedArray | None,
    draws: Uint64s,
    share: Fraction,
) -> Bools:
    """Return whether each sample is held out, bool [n].

    Args:
        source: strings [n], the name of each one's source; None where the table does not say.
        key: strings [n]. Where one is null, or there are none, the sample's place in its source
            stands for it, and the sample keeps its side as long as it keeps that.
        draws: uint64 [n], of those places (`Places.draws`).
        share: of the samples of each source, 0 <= share <= 1. Samples with the same source and key
            are on the same side.
    """
    if key is None:
        hashes = hash_ints(draws, _PLACED)
    else:
        hashes = hash_strings(key) ^ np.uint64(_KEYED)
        if key.null_count:
            unnamed = np.flatnonzero(np.asarray(key.is_null()))
            hashes[unnamed] = hash_ints(draws[unnamed], _PLACED)
    if source is not None:
        if not pa.types.is_dictionary(source.type):
            source = source.dictionary_encode()  # names repeat: each is hashed once
        hashes ^= splitmix64s(hash_strings(source))
    return below(splitmix64s(hashes), share)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The samples that a file excludes.

    Attributes:
        named: distinct rows of the columns that it has, among source, key and sample_id.
        fingerprint: hex digest of these rows; the file's name and order do not enter it.
    """

    named: pl.DataFrame
    fingerprint: str

    def of(self, rows: LengthsRows) -> Bools:
        """bool [n]: which of `rows` are excluded.

        Raises:
            FormatError: the lengths table lacks a column that the file names samples by.
        """
        names = self.named.columns
        frame = rows.frame
        if "sample_id" in names and "sample_id" not in frame.columns:
            frame = frame.with_columns(sample_id=pl.Series(rows.sample_id))
        for name in names:
            if name not in frame.columns:
                raise FormatError(
                    f"samples are excluded by `{name}`, which {rows.uri} does not have: name them "
                    "by sample_id"
                )
        marked = self.named.with_columns(excluded=True)
        matched = frame.select(names).join(marked, on=names, how="left", maintain_order="left")
        return matched.get_column("excluded").fill_null(False).to_numpy()


def read_exclusion(path: str) -> Exclusion:
    """The samples that the Parquet file at `path` names by `key` (and `source`) or `sample_id`.

    Raises:
        SourceError: it cannot be read.
        FormatError: it has neither column.
    """
    try:
        frame = pl.read_parquet(absolute(path), glob=False)  # polars knows "~" as a home folder
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SourceError(f"exclude {path} cannot be read as Parquet ({reason})") from None
    names = [name for name in _NAMES if name in frame.columns]
    if not {"key", "sample_id"} & set(names):
        raise FormatError(
            f"exclude {path} has no column `key` or `sample_id`: name samples by one of them"
        )
    if "sample_id" in names:
        names = ["sample_id"]  # it says all
        if not frame.get_column("sample_id").dtype.is_integer():
            raise FormatError(f"exclude {path}: sample_id is no integer: cast it first")
        # No sample has an id beyond int64: such a row names none.
        frame = frame.with_columns(pl.col("sample_id").cast(pl.Int64, strict=False))
    else:
        for name in names:
            kind = frame.get_column(name).dtype
            if kind not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
                raise FormatError(f"exclude {path}: {name} is {kind}, not text: cast it first")
        frame = frame.with_columns(pl.col(name).cast(pl.String) for name in names)
    named = frame.select(names).drop_nulls().unique().sort(names)
    table = named.to_arrow(compat_level=pl.CompatLevel.oldest())
    parts = [[name, column_digest(table[name])] for name in names]
    return Exclusion(named, digest(canonical_json(parts)))


# In the order in which they are looked for: the first that holds is the one that is told.
REASONS = (
    "",
    "rejected",
    "invalid_length",
    "empty",
    "excluded",
    "consumed",
    "holdout",
    "train",
    "mix",
    "too_long",
    "max_images",
    "max_vision_patches",
    "max_samples",
    "max_packs",
)


class Finished(NamedTuple):
    """Copies that training has had whole, in order: int64 ``[n]`` and int32 ``[n]``."""

    sample_id: Int64s
    copy: Int32s


class Trained(NamedTuple):
    """Tokens ``start .. stop - 1`` of samples, that training has had: int64 and int32 ``[n]``, in
    order of `sample`."""

    sample: Int64s
    start: Int32s
    stop: Int32s


@dataclass(frozen=True, slots=True)
class ConsumedRows:
    """All that training has had already: whole samples, and parts of copies that it has begun."""

    finished: Finished
    begun: Stretches
    trained: Trained


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that leave samples out of a plan besides those that cannot be packed.

    Attributes:
        exclude: what the user names.
        consumed: what training has had.
        before: reason -> int64 [n], ids of samples that the plan which is continued left out by
            choice, for that reason.
    """

    exclude: Exclusion | None = None
    consumed: ConsumedRows | None = None
    before: Mapping[str, Int64s] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """A reason for every row, int8 [n] into `REASONS`: 0 where it is to be packed."""

    _code: NDArray[np.int8]

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

    def join(self, chosen: Int64s) -> None:
        """Drop both sides of a pair where one is dropped, for one reason: of two, the first.

        Args:
            chosen: rows of the chosen sides; the rejected ones are behind them.
        """
        if not len(chosen):
            return
        one, other = self._code[chosen], self._code[chosen + 1]
        is_both = (one != 0) & (other != 0)
        reason = np.where(is_both, np.minimum(one, other), np.maximum(one, other))
        self._code[chosen] = self._code[chosen + 1] = reason

    def dropped(self) -> Int64s:
        """Row numbers, ascending."""
        return np.flatnonzero(self._code)

    def of(self, reasons: Sequence[str]) -> Int64s:
        """Numbers of the rows that are dropped for one of `reasons`, ascending."""
        dropped = self.dropped()
        wanted = np.isin(np.arange(len(REASONS)), [REASONS.index(reason) for reason in reasons])
        return dropped[wanted[self._code[dropped]]]

    def reasons(self, rows: Int64s) -> pa.Array:
        """The reason of each of `rows`."""
        codes = pa.array(self._code[rows])
        return pa.DictionaryArray.from_arrays(codes, pa.array(REASONS)).cast(pa.string())


@dataclass
class Copies:
    """The number of times that each row is packed.

    Attributes:
        number: int64 [n], or None where each is packed once.
        is_partial: bool [n]: training has had a part of one of its copies.
        had: int64 [m] each, rows and copies that training has had whole, in that order.
        left: what is left of those that it has begun.
        trained: int64 [m] each, ranges of tokens that it has had: rows, the first token, and the
            one after the last.
    """

    number: Int64s | None
    is_partial: Bools
    had: tuple[Int64s, Int64s]
    left: Stretches
    trained: tuple[Int64s, Int64s, Int64s]

    def of(self, rows: Int32s) -> tuple[Int32s, Int32s | None]:
        """Each of `rows`, ascending ones of which nothing is begun, as often as it is packed, and
        the copies' numbers; None where all are 0."""
        if self.number is None:
            return rows, None
        times = self.number[rows]
        copies = _lowest_free(*self.had, rows.astype(np.int64), times)
        return np.repeat(rows, times), copies.astype(np.int32)

    def stretches(self, rows: Int64s, weight: Int32s) -> Stretches:
        """Return what is to be cut of `rows`, ascending ones of `weight` tokens: the lowest copies
        that training has not had, begun ones first."""
        times = np.ones(len(rows), np.int64) if self.number is None else self.number[rows]
        row, copy = distinct_pairs(self.left.sample, self.left.copy)
        first, last = (np.searchsorted(row, rows, side) for side in SIDES)
        chosen, _ = expand_ranges(first, np.minimum(last, first + times))
        is_chosen = pairs_in(self.left.sample, self.left.copy, row[chosen], copy[chosen])
        begun = select(self.left, is_chosen)
        taken = in_order(np.r_[self.had[0], row], np.r_[self.had[1], copy])
        times = np.maximum(times - (last - first), 0)
        fresh = np.repeat(rows, times)
        zeros = np.zeros(len(fresh), np.int64)
        untouched = Stretches(
            fresh,
            _lowest_free(*taken, rows, times),
            zeros,
            weight[fresh].astype(np.int64),
            zeros,
        )
        both = joined_columns([begun, untouched])
        return select(both, np.lexsort((both.start, both.copy, both.sample)))


def _lowest_free(row: Int64s, copy: Int64s, rows: Int64s, times: Int64s) -> Int64s:
    """For each of `rows` the lowest `times` copy numbers that are not taken, one after the other.

    Taken are the pairs of `row` and `copy`, in order. The i-th taken number c of a row has c - i
    free ones below it: the j-th free number is j and as many more as there are taken ones with
    c - i <= j.
    """
    owner = np.repeat(np.arange(len(rows)), times)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(times) - times, times)
    if not len(row):
        return nth
    free = copy - np.arange(len(row)) + np.searchsorted(row, row)
    upto = np.searchsorted(row << 32 | free, rows[owner] << 32 | nth, "right")
    lowest: Int64s = nth + upto - np.searchsorted(row, rows)[owner]
    return lowest


def judge(
    rows: LengthsRows, weight: Int32s, options: Options, rules: Rules
) -> tuple[Verdicts, Copies]:
    """Return what is dropped before lengths and caps are looked at, and the copies of the rest.

    `weight` has the tokens of each row after the shift, int32 [n].
    """
    verdicts = Verdicts(np.zeros(rows.num_rows, np.int8))
    ok = rows.is_ok()
    verdicts.set(~ok, "rejected")
    if (weight <= 0).any():
        stated, null = rows.ints("length")
        verdicts.set((stated < 0) if null is None else null | (stated < 0), "invalid_length")
        verdicts.set(weight <= 0, "empty")
    if rules.exclude is not None:
        verdicts.set(rules.exclude.of(rows), "excluded")
    for reason, ids in rules.before.items():
        verdicts.set(_rows_of(ids, rows)[0], reason)
    number = _copies(rows, options)
    none = np.empty(0, np.int64)
    untouched = np.zeros(rows.num_rows, bool)
    copies = Copies(number, untouched, (none, none), Stretches.none(), (none, none, none))
    if rules.consumed is not None:
        _take_off(rows, rules.consumed, copies, verdicts)
    if options.holdout is not None:
        source = rows.arrow("source") if "source" in rows.frame.columns else None
        share = parse_share(options.holdout)
        out = holdout(source, rows.places.own_keys(rows), rows.places.draws(rows), share)
        verdicts.set(
            out if options.side == "train" else ~out,
            "holdout" if options.side == "train" else "train",
        )
    if copies.number is not None:
        verdicts.set(copies.number == 0, "mix")
    verdicts.join(rows.chosen)
    return verdicts, copies


def _copies(rows: LengthsRows, options: Options) -> Int64s | None:
    """Copies of each row by its source's weight; None where every weight is 1."""
    if not options.weights:
        return None
    number = np.ones(rows.num_rows, np.int64)
    source = rows.frame.get_column("source")
    draws = hash_ints(rows.places.draws(rows), derive_key(options.seed, "mix"))
    for name, weight in options.weights.items():
        mine = (source == name).fill_null(False).to_numpy()
        number[mine] = copies_of(Fraction(weight), draws[mine])
    return number


def _take_off(
    rows: LengthsRows, consumed: ConsumedRows, copies: Copies, verdicts: Verdicts
) -> None:
    """Take what training has had off the copies."""
    at, mine = _rows_of(consumed.finished.sample_id, rows)
    numbers = np.ones(rows.num_rows, np.int64) if copies.number is None else copies.number
    left = np.maximum(numbers - np.bincount(at, minlength=rows.num_rows), 0)
    verdicts.set((left == 0) & (numbers > 0), "consumed")
    copies.number = left
    going_on = left[at] > 0
    copies.had = at[going_on], consumed.finished.copy[mine][going_on].astype(np.int64)
    at, mine = _rows_of(consumed.begun.sample, rows)
    going_on = left[at] > 0
    begun = (values[mine][going_on] for values in consumed.begun[1:])
    copies.left = Stretches(at[going_on], *begun)
    copies.is_partial[copies.left.sample] = True
    at, mine = _rows_of(consumed.trained.sample, rows)
    start, stop = (values[mine].astype(np.int64) for values in consumed.trained[1:])
    copies.trained = at, start, stop


def _rows_of(ids: Int64s, rows: LengthsRows) -> tuple[Int64s, Int64s]:
    """The rows that have one of `ids`, ascending sample ids, and which of `ids` each has."""
    own = rows.sample_id
    if not len(own):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, last = np.searchsorted(ids, own[0]), np.searchsorted(ids, own[-1], "right")
    at = np.searchsorted(own, ids[first:last])
    same = own[at] == ids[first:last]
    return at[same], first + np.flatnonzero(same)
