"""Which rows are to be packed, and how often: a reason or a number of copies for every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

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
from packidx.lengths.table import LengthsRows
from packidx.plan.options import parse_share
from packidx.plan.select.mixture import copies_of

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
        draws: uint64 [n], of those places (`LengthsRows.draws`).
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
            raise FormatError(f"exclude {path}: sample_id is not an integer: cast it first")
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
    "no_labels",
    "max_images",
    "max_vision_patches",
    "max_samples",
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that leave samples out of a plan besides those that cannot be packed.

    Attributes:
        exclude: what the user names.
        before: reason -> ``sample_id``, int64, ascending, of samples that a continued plan drops
            for that reason: consumed by training, or excluded before.
    """

    exclude: Exclusion | None = None
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


def judge(
    rows: LengthsRows, weight: Int32s, options: Options, rules: Rules
) -> tuple[Verdicts, Int64s | None]:
    """Return what is dropped before lengths and caps are checked, and copies per row, int64 [n].

    Copies are None if each row is packed once.

    `weight` has the tokens of each row, int32 [n].
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
    for reason, samples in rules.before.items():
        verdicts.set(np.isin(rows.sample_id, samples), reason)
    number = _copies(rows, options)
    if options.holdout is not None:
        source = rows.arrow("source") if "source" in rows.frame.columns else None
        share = parse_share(options.holdout)
        out = holdout(source, rows.own_keys(), rows.draws(), share)
        verdicts.set(
            out if options.side == "train" else ~out,
            "holdout" if options.side == "train" else "train",
        )
    if number is not None:
        verdicts.set(number == 0, "mix")
    return verdicts, number


def _copies(rows: LengthsRows, options: Options) -> Int64s | None:
    """Copies of each row by its source's weight; None where every weight is 1."""
    if not options.weights:
        return None
    number = np.ones(rows.num_rows, np.int64)
    source = rows.frame.get_column("source")
    draws = hash_ints(rows.draws(), derive_key(options.seed, "mix"))
    for name, weight in options.weights.items():
        mine = (source == name).fill_null(False).to_numpy()
        number[mine] = copies_of(Fraction(weight), draws[mine])
    return number
