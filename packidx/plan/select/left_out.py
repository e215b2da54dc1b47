"""Samples that a user leaves out: a share that is held out, and those that a file names.

A sample is held out if the hash of its source's name and its key (of one without a name of its own,
its place in the source) lies below the share, both taken as parts of 2^64: a property of the
sample, not of the table or the seed. So adding data, planning
again with another seed or mixing sources otherwise moves no sample to the other side, and a larger
share holds out every sample of a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.arrays import Bools, Uint64s
from packidx.digests import canonical_json, column_digest, digest
from packidx.errors import FormatError, SourceError
from packidx.hashing import below, derive_key, hash_ints, hash_strings, splitmix64s
from packidx.io.urls import absolute
from packidx.lengths.rows import LengthsRows

_KEYED = derive_key("holdout", "key")
_PLACED = derive_key("holdout", "place")
_NAMES = ("source", "key", "sample_id")


def holdout(
    source: pa.Array | pa.ChunkedArray | None,
    key: pa.Array | pa.ChunkedArray | None,
    draws: Uint64s,
    share: Fraction,
) -> Bools:
    """Whether each sample is held out, bool [n].

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
