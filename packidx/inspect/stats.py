"""Numbers about a snapshot's packs and schedule, and what a lengths table holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS
from packidx.hashing import derive_key
from packidx.index.order import packs_per_step
from packidx.index.reader import Index
from packidx.inspect.sql import Row, rows_of, tables_of
from packidx.inspect.waiting import RANKS, ScheduledPacks, first_epoch, ranks_stats
from packidx.lengths.rows import strongest_first
from packidx.lengths.table import read_lengths
from packidx.pack.counts import LengthPairs
from packidx.permutation import permutation

_COLUMNS = (
    "num_samples",
    "length",
    "label_tokens",
    "image_tokens",
    "video_tokens",
    "num_images",
    "vision_patches",
    "attention_cost",
)


def pack_stats(index: Index) -> dict[str, dict[str, float]]:
    """Minimum, median, 95th percentile, maximum and mean per pack, of every known column."""
    table = index.packs(_COLUMNS)
    out = {}
    for name in _COLUMNS:
        values = table[name].drop_null().to_numpy()
        if len(values) < table.num_rows or not len(values) or not values.any():
            continue
        quantiles = np.quantile(values, [0, 0.5, 0.95, 1], method="nearest")
        numbers = [*(float(quantile) for quantile in quantiles), float(values.mean())]
        out[name] = dict(zip(("min", "p50", "p95", "max", "mean"), numbers, strict=True))
    return out


def sample_stats(
    index: Index, progress: Callable[[str], None] = lambda doing: None, ranks: Sequence[int] = RANKS
) -> dict[str, Any]:
    """Return what only the samples tell.

    Returns:
        ``composition``: ``length_correlation`` of samples that share a pack (None where nothing
        varies), ``samples_per_pack`` (min, p50, p95, max by nearest rank, and mean) and
        ``source_distance`` (`source_distance`; None without sources); and
        ``schedule``: per number of ranks, what `ranks_stats` says of the first epoch.
    """
    progress("reading samples")
    distance = None
    if index.snapshot.sources:
        with tables_of({name: (index, name) for name in ("packs", "samples")}) as connection:
            distance = source_distance(connection)
    progress("looking at the schedule")
    return {
        "composition": _of_packs(index) | {"source_distance": distance},
        "schedule": _schedule(index, ranks),
    }


def _of_packs(index: Index) -> dict[str, Any]:
    """Return what the packs' own columns tell of their composition."""
    packs = index.packs(["num_samples", "length", "attention_cost"])
    size, length, squares = (column.to_numpy().astype(np.int64) for column in packs.columns)
    pairs = LengthPairs()
    pairs.add(np.ones_like(size), size, length, squares)
    names, shares = ("min", "p50", "p95", "max"), (0, 0.5, 0.95, 1)
    per_pack: dict[str, int | float | None] = dict.fromkeys((*names, "mean"))
    if len(size):
        found = np.quantile(size, shares, method="inverted_cdf")
        per_pack = dict(zip(names, map(int, found), strict=True)) | {"mean": float(size.mean())}
    return {"length_correlation": pairs.correlation(), "samples_per_pack": per_pack}


def _schedule(index: Index, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the order of the first epoch's packs is worth for each number of ranks."""
    columns, llm, vit = first_epoch(index, ["image_tokens", "video_tokens"])
    known = [columns[name] for name in ("image_tokens", "video_tokens") if name in columns]
    vision = sum(known[1:], known[0]) if known else None
    packs = ScheduledPacks(llm, vit, vision)
    return ranks_stats(packs, packs_per_step(index.snapshot) or 1, ranks)


_DEALT_ROWS = 1 << 20  # samples that are dealt anew to see what random composition gives
_ONE = 1 << 32  # a share of 1 in fixed point: sums of shares are sums of integers
_IN_COMMON = f"""WITH own AS MATERIALIZED (
    SELECT pack_id, source, CAST(sum(length) AS BIGINT) AS tokens FROM {{samples}} GROUP BY ALL),
packs AS (SELECT pack_id, CAST(sum(tokens) AS BIGINT) AS total FROM own GROUP BY pack_id),
whole AS (
    SELECT source, CAST(sum(length) * {_ONE} // (SELECT sum(length) FROM samples) AS BIGINT)
    AS share FROM samples GROUP BY source)
SELECT sum(least(tokens * {_ONE} // total, share)) FROM own JOIN packs USING (pack_id)
JOIN whole ON own.source IS NOT DISTINCT FROM whole.source"""


def source_distance(connection: duckdb.DuckDBPyConnection) -> dict[str, float | None]:
    """Return how far the sources of packs are from those of the whole (total variation distance).

    Args:
        connection: with `packs` and `samples`.

    Returns:
        how many of a pack's tokens, as a share, are of other sources than the whole's: on ``mean``,
        and at ``random``, had the samples of the first packs, about a million, been dealt to them
        at random; None where there is no pack.
    """

    def distance(samples: str, packs: int) -> float:
        [(common,)] = connection.execute(_IN_COMMON.format(samples=samples)).fetchall()
        return max(0.0, 1 - int(common) / (packs * _ONE))

    [(packs, dealt)] = connection.execute(
        f"""SELECT count(*), greatest(1, count(*) FILTER (upto <= {_DEALT_ROWS})) FROM (
        SELECT sum(num_samples) OVER (ORDER BY pack_id) AS upto FROM packs)"""
    ).fetchall()
    if not packs:
        return {"mean": None, "random": None}
    rows = connection.sql(
        "SELECT pack_id, source, length FROM samples WHERE pack_id IN "
        f"(SELECT pack_id FROM packs ORDER BY pack_id LIMIT {dealt}) ORDER BY pack_id, position"
    ).to_arrow_table()
    order = permutation(rows.num_rows, derive_key(0, "composition"))
    held = rows.select(["source", "length"]).take(pa.array(order))
    connection.register("dealt", held.append_column("pack_id", rows["pack_id"]))
    return {"mean": distance("samples", packs), "random": distance("dealt", dealt)}


# -- lengths, planned or not -----------------------------------------------------------------------

_LONGEST = 5
_PERCENTS = {"min": 0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}
_OF_ROWS = (
    *("source", "status", "reason", "key", "sample_id", "length", "label_tokens", "method"),
    *("image_tokens", "video_tokens", "audio_tokens", "num_images", "num_videos"),
)
_ROWS = """SELECT *, CASE
        WHEN (images > 0)::INT + (videos > 0)::INT + (audio > 0)::INT > 1 THEN 'mixed'
        WHEN images > 0 THEN 'images' WHEN videos > 0 THEN 'videos' WHEN audio > 0 THEN 'audio'
        WHEN coalesce(image_tokens, num_images) + coalesce(video_tokens, num_videos)
            + audio_tokens IS NULL THEN 'unknown' ELSE 'text' END AS kind
    FROM (SELECT *, greatest(image_tokens, num_images, 0) AS images,
        greatest(video_tokens, num_videos, 0) AS videos, greatest(audio_tokens, 0) AS audio
        FROM ({parts}))"""  # greatest() skips nulls
_SUMS = f"""SELECT source AS name, count(*) AS num_samples, count(*) FILTER (is_ok) AS num_ok,
    count(*) FILTER (NOT is_ok) AS num_rejected,
    CAST(coalesce(sum(length) FILTER (is_ok), 0) AS BIGINT) AS num_tokens,
    CAST(sum(label_tokens) FILTER (is_ok) AS BIGINT) AS label_tokens,
    histogram(method) FILTER (is_ok) AS methods,
    histogram(coalesce(reason, 'no reason')) FILTER (NOT is_ok) AS rejected,
    quantile_disc(length, {list(_PERCENTS.values())}) FILTER (is_ok) AS length,
    avg(length) FILTER (is_ok) AS mean, histogram(kind) FILTER (is_ok) AS modality,
    CAST(sum(num_images) AS BIGINT) AS num_images, CAST(sum(num_videos) AS BIGINT) AS num_videos
    FROM rows GROUP BY GROUPING SETS ((), (source))
    ORDER BY grouping(source) DESC, num_samples DESC, source"""
_LONG = f"""SELECT sample_id, source, key, length FROM rows WHERE is_ok AND length IS NOT NULL
    ORDER BY length DESC, sample_id, key LIMIT {_LONGEST}"""
_KINDS = ("text", "images", "videos", "audio", "mixed", "unknown")


def lengths_stats(path: str) -> dict[str, Any]:
    """Numbers about a lengths table, ready for JSON.

    Args:
        path: as `packidx plan` takes it: a folder, a Parquet file, a glob, or a URL of one.

    Returns:
        ``path``, ``num_samples`` (rows), ``num_ok``, ``num_rejected``, ``num_tokens`` (of the rows
        that are not rejected), ``label_tokens`` (of those that state them; None where none does),
        ``methods``, ``rejected`` (reason -> rows), ``sources`` (the same of each, largest first,
        and ``length``: quantiles by nearest rank and the mean, ``modality``: rows by what they
        hold, ``num_images``, ``num_videos``), and ``longest`` (samples with their keys).

    Raises:
        SourceError, FormatError, MismatchError: `path` is not usable.
    """
    table = read_lengths(path)
    with table.local_files() as paths, duckdb.connect() as connection:
        parts = []
        for part, names in zip(paths, table.names, strict=True):
            columns = ", ".join(_column(name, name in names) for name in _OF_ROWS)
            ok = "coalesce(status = 'ok', false)" if "status" in names else "true"
            parts.append(f"SELECT {columns}, {ok} AS is_ok FROM {scan_of([part])}")
        connection.execute(f"CREATE VIEW rows AS {_ROWS.format(parts=' UNION ALL '.join(parts))}")
        whole, *sources = map(_of_source, rows_of(connection, _SUMS))
        longest = rows_of(connection, _LONG)
    of_all = {name: whole[name] for name in _TOTALS}
    return {"path": path, **of_all, "sources": sources, "longest": longest}


_TOTALS = (
    *("num_samples", "num_ok", "num_rejected", "num_tokens", "label_tokens"),
    *("methods", "rejected"),
)


def _column(name: str, is_there: bool) -> str:
    kind = "VARCHAR" if pa.types.is_string(LENGTHS.field(name).type) else "BIGINT"
    return f"""CAST({f'"{name}"' if is_there else "NULL"} AS {kind}) AS "{name}\""""


def _of_source(row: Row) -> Row:
    """Return a row of sums with its members in the order in which they are told."""
    mean, quantiles, held = row.pop("mean"), row["length"], row["modality"] or {}
    row["methods"] = strongest_first(row["methods"] or {}, "lengths")
    reasons = (row["rejected"] or {}).items()
    row["rejected"] = dict(sorted(reasons, key=lambda pair: (-pair[1], pair[0])))
    if mean is not None:
        row["length"] = dict(zip(_PERCENTS, quantiles, strict=True)) | {"mean": mean}
    return row | {"modality": {kind: held[kind] for kind in _KINDS if kind in held}}
