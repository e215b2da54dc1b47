"""Samples that a user names to be left out: a Parquet file of keys or of sample ids."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from packidx.arrays import Bools
from packidx.digests import canonical_json, column_digest, digest
from packidx.errors import FormatError, SourceError
from packidx.io.urls import absolute
from packidx.lengths.rows import LengthsRows

_NAMES = ("source", "key", "sample_id")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What a file excludes.

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
        joined = frame.select(names).join(marked, on=names, how="left", maintain_order="left")
        return joined.get_column("excluded").fill_null(False).to_numpy()


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
