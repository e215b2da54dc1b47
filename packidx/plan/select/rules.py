"""Rules that leave samples out of a plan: holdout, exclusion, and what training has consumed.

A sample is consumed if any copy or piece of it was in a pack that training has finished. Plans
continued before list what was consumed then among their dropped samples, so one snapshot and its
state say everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from packidx.arrays import Bools, Int64s, Uint64s
from packidx.digests import canonical_json, column_digest, digest_parts
from packidx.errors import FormatError, MismatchError, OptionError, SourceError
from packidx.format.index import Consumed
from packidx.hashing import derive_key, hash_ints, hash_strings, is_below_share, splitmix64s
from packidx.index.order import consumed_packs
from packidx.index.reader import Index
from packidx.io.urls import to_absolute
from packidx.lengths.table import Lengths, LengthsRows

if TYPE_CHECKING:
    from packidx.plan.curriculum import Ranking

_KEYED = derive_key("holdout", "key")
_PLACED = derive_key("holdout", "place")


def is_held_out(
    source: pa.Array | pa.ChunkedArray | None,
    key: pa.Array | pa.ChunkedArray | None,
    draws: Uint64s,
    share: Fraction,
) -> Bools:
    """Return whether each sample is held out, bool [n].

    Args:
        source: strings [n], the name of each one's source; None if the table does not say.
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
    return is_below_share(splitmix64s(hashes), share)


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
    frame = read_named_samples("exclude", path)
    named = frame.drop_nulls().unique().sort(frame.columns)
    table = named.to_arrow(compat_level=pl.CompatLevel.oldest())
    parts = [[name, column_digest(table[name])] for name in named.columns]
    return Exclusion(named, digest_parts(canonical_json(parts)))


def read_named_samples(option: str, path: str, *more: str) -> pl.DataFrame:
    """Return the columns of a Parquet file that name samples, `key` (and `source`) or `sample_id`,
    and `more`.

    Args:
        option: that names the file, for errors.

    Raises:
        SourceError: it cannot be read.
        FormatError: it lacks a column, or one has another type.
    """
    try:
        frame = pl.read_parquet(to_absolute(path), glob=False)  # polars knows "~" as a home folder
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SourceError(f"{option} {path} cannot be read as Parquet ({reason})") from None
    names = [name for name in ("source", "key", "sample_id") if name in frame.columns]
    if not {"key", "sample_id"} & set(names):
        raise FormatError(
            f"{option} {path} has no column `key` or `sample_id`: name samples by one of them"
        )
    if absent := [name for name in more if name not in frame.columns]:
        raise FormatError(f"{option} {path} has no column `{absent[0]}`: name one that it has")
    if "sample_id" in names:
        names = ["sample_id"]  # it says all
        if not frame.get_column("sample_id").dtype.is_integer():
            raise FormatError(f"{option} {path}: sample_id is not an integer: cast it first")
        # No sample has an id beyond int64: such a row names none.
        frame = frame.with_columns(pl.col("sample_id").cast(pl.Int64, strict=False))
    else:
        for name in names:
            kind = frame.get_column(name).dtype
            if kind not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
                raise FormatError(f"{option} {path}: {name} is {kind}, not text: cast it first")
        frame = frame.with_columns(pl.col(name).cast(pl.String) for name in names)
    return frame.select([*names, *more])


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that leave samples out of a plan besides those that cannot be packed.

    Attributes:
        exclude: what the user names.
        ranking: what packs are sorted by, of a schedule ``by:COLUMN``.
        before: reason -> ``sample_id``, int64, ascending, of samples that a continued plan drops
            for that reason: consumed by training, or excluded before.
    """

    exclude: Exclusion | None = None
    ranking: Ranking | None = None
    before: Mapping[str, Int64s] = field(default_factory=dict)


def continue_from(
    table: Lengths, index: Index, state: Mapping[str, Any], rules: Rules
) -> tuple[Rules, Consumed]:
    """Return `rules` that also drop the samples consumed at `state` of `index`, and that state.

    Raises:
        MismatchError: the state is of another snapshot, or `index` was planned of other lengths.
        FormatError: it is not a state of a sampler.
        OptionError: the state is of an epoch that has not begun.
    """
    packs = consumed_packs(index, state)  # refuses a state of another snapshot
    if not state["position"]:
        raise OptionError(
            f"the state says that 0 packs of epoch {state['epoch']} of {index.path}@{index.id[:12]}"
            " are trained, so there is nothing to continue: give what sampler.state_at(step)"
            " returned after the last finished step, or plan without --continue"
        )
    planned, given = index.snapshot.lengths.fingerprint, table.fingerprint()
    if planned != given:
        raise MismatchError(
            f"{index.path}@{index.id[:12]} was planned of lengths with fingerprint {planned[:12]}, "
            f"{table.uri} has {given[:12]}: continue with the lengths that were planned"
        )
    done = np.zeros(index.num_packs, bool)
    done[packs] = True
    found: dict[str, list[Any]] = {"consumed": [], "excluded": []}
    for number, _, first, _, window in index.snapshot.placed:
        dropped = index.window("dropped", number, ["sample_id", "reason"])
        reason = dropped["reason"].to_numpy()
        for name, parts in found.items():
            parts.append(dropped["sample_id"].to_numpy()[reason == name])
        of_window = done[first : first + window.num_packs]
        if of_window.any():
            sizes = index.window("packs", number, ["num_samples"])["num_samples"].to_numpy()
            ids = index.window("samples", number, ["sample_id"])["sample_id"].to_numpy()
            found["consumed"].append(ids[np.repeat(of_window, sizes)])
    own = {name: state[name] for name in ("seed", "epoch", "global_batch", "position")}
    dropped_before = {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}
    return replace(rules, before=dropped_before), Consumed(snapshot_id=index.id, **own)
