"""What a lengths table holds, source by source, and what plans of several capacities would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packidx.arrays import Int64s
from packidx.errors import OptionError, SourceError
from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS
from packidx.lengths.rows import strongest_first
from packidx.lengths.survey import Survey, survey
from packidx.lengths.table import Lengths, read_lengths
from packidx.plan.preview import preview

CAPACITIES = (4096, 8192, 16384, 32768)
_LONGEST = 5
_PERCENTS = {"min": 0, "p50": 50, "p95": 95, "p99": 99, "max": 100}
_MODALITIES = {
    "text": "images + videos + audio = 0 AND is_told",
    "images": "images > 0 AND videos + audio = 0",
    "videos": "videos > 0 AND images + audio = 0",
    "audio": "audio > 0 AND images + videos = 0",
    "mixed": "(images > 0)::INT + (videos > 0)::INT + (audio > 0)::INT > 1",
    "unknown": "images + videos + audio = 0 AND NOT is_told",
}
_COLUMNS: tuple[str, ...] = (
    "source",
    "status",
    "reason",
    "key",
    "sample_id",
    "length",
    "image_tokens",
)
_COLUMNS += ("video_tokens", "audio_tokens", "num_images", "num_videos")


def lengths_stats(path: str, capacities: Sequence[int] = CAPACITIES) -> dict[str, Any]:
    """Numbers about a lengths table, ready for JSON.

    Args:
        path: as `packidx plan` takes it: a folder, a Parquet file, a glob, or a URL of one.
        capacities: that plans are looked at for (`packidx.plan.preview.preview`).

    Returns:
        ``path``, ``num_samples`` (rows), ``num_ok``, ``num_rejected``, ``num_tokens`` (of the rows
        that are not rejected), ``label_tokens`` (of those that state them; None where none does),
        ``methods``, ``rejected`` (reason -> rows), ``sources`` (the same of each, largest first,
        and ``length``: quantiles by nearest rank and the mean, ``modality``: rows by what they
        hold, ``num_images``, ``num_videos``), ``longest`` (samples with their keys), and
        ``capacities`` (rows of `preview`; empty where it cannot tell, and ``no_capacities`` says
        why).

    Raises:
        SourceError, FormatError, MismatchError: `path` is not usable.
    """
    table = read_lengths(path)
    with table.local_files() as paths:
        counted = survey(paths)
        held, rejected, longest = _scanned(table, paths)
    names = sorted(held, key=lambda name: (-held[name]["num_samples"], name or ""))
    sources = [_source(name, counted, held[name], rejected) for name in names]
    labels = [source["label_tokens"] for source in sources if source["label_tokens"] is not None]
    reasons: Counter[str] = Counter()
    for source in sources:
        reasons.update(source["rejected"])
    try:
        rows, why = [asdict(row) for row in preview(path, capacities)], None
    except (OptionError, SourceError) as error:
        rows, why = [], str(error)
    return {
        "path": path,
        **{
            name: sum(source[name] for source in sources)
            for name in ("num_samples", "num_ok", "num_rejected", "num_tokens")
        },
        "label_tokens": sum(labels) if labels else None,
        "methods": counted.methods,
        "rejected": dict(reasons.most_common()),
        "sources": sources,
        "longest": longest,
        "capacities": rows,
        "no_capacities": why,
    }


def _source(
    name: str | None,
    counted: Survey,
    held: dict[str, Any],
    rejected: dict[str | None, dict[str, int]],
) -> dict[str, Any]:
    """What is told of one source."""
    is_mine = pc.equal(counted.table["source"], name) if name else counted.table["source"].is_null()
    mine = counted.table.filter(pc.and_(is_mine, counted.table["ok"]))
    known = mine.filter(mine["length"].is_valid())
    length, count = known["length"].to_numpy(), known["count"].to_numpy()
    num_ok, num_unlabelled, labels = (int(pc.sum(mine[column]).as_py() or 0) for column in _SUMMED)
    return {
        "name": name,
        "num_samples": held["num_samples"],
        "num_ok": num_ok,
        "num_rejected": held["num_samples"] - num_ok,
        "num_tokens": int(length @ count),
        "label_tokens": labels if num_unlabelled < num_ok else None,
        "methods": _methods(mine),
        "rejected": rejected.get(name, {}),
        "length": quantiles(length, count),
        "modality": {kind: held[kind] for kind in _MODALITIES if held[kind]},
        "num_images": held["num_images"],
        "num_videos": held["num_videos"],
    }


_SUMMED = ("count", "num_unlabelled", "label_tokens")


def _methods(rows: pa.Table) -> dict[str, int]:
    grouped = rows.filter(rows["method"].is_valid()).group_by("method")
    pairs = grouped.aggregate([("count", "sum")]).to_pylist()
    return strongest_first({pair["method"]: pair["count_sum"] for pair in pairs}, "lengths")


def quantiles(values: Int64s, counts: Int64s) -> dict[str, float] | None:
    """Minimum, quantiles by nearest rank, maximum and mean of `counts` times `values`.

    Args:
        values: int64 [n], in any order.
        counts: int64 [n].

    Returns:
        None where there is no value.
    """
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    if not len(ends) or not ends[-1]:
        return None
    total = int(ends[-1])
    ranks = {name: max(1, -(-percent * total // 100)) for name, percent in _PERCENTS.items()}
    found = {
        name: int(values[np.searchsorted(ends, rank, side="left")]) for name, rank in ranks.items()
    }
    return {**found, "mean": float(values @ counts[order] / total)}


def _scanned(
    table: Lengths, paths: Sequence[Path]
) -> tuple[
    dict[str | None, dict[str, Any]], dict[str | None, dict[str, int]], list[dict[str, Any]]
]:
    """Rows and media by source, reasons of rejected rows by source, and the longest samples."""
    import duckdb

    parts = []
    for path, names in zip(paths, table.names, strict=True):
        columns = ", ".join(_column(name, name in names) for name in _COLUMNS)
        ok = "coalesce(status = 'ok', false)" if "status" in names else "true"
        parts.append(f"SELECT {columns}, {ok} AS is_ok FROM {scan_of([path])}")
    held = (
        "SELECT *, greatest(image_tokens, num_images, 0) AS images, "  # which skips nulls
        "greatest(video_tokens, num_videos, 0) AS videos, greatest(audio_tokens, 0) AS audio, "
        "coalesce(image_tokens, num_images) + coalesce(video_tokens, num_videos) + audio_tokens "
        "IS NOT NULL AS is_told "
        f"FROM ({' UNION ALL '.join(parts)})"
    )
    kinds = ", ".join(
        f"count(*) FILTER (is_ok AND {holds}) AS {kind}" for kind, holds in _MODALITIES.items()
    )
    with duckdb.connect() as connection:
        connection.sql(f"CREATE VIEW rows AS {held}")
        by_source = connection.sql(
            f"SELECT source, count(*) AS num_samples, {kinds}, "
            "sum(num_images)::BIGINT AS num_images, sum(num_videos)::BIGINT AS num_videos "
            "FROM rows GROUP BY source"
        ).to_arrow_table()
        reasons = connection.sql(
            "SELECT source, coalesce(reason, 'no reason') AS reason, count(*) AS number FROM rows "
            "WHERE NOT is_ok GROUP BY ALL ORDER BY number DESC, reason"
        ).to_arrow_table()
        longest = connection.sql(
            "SELECT sample_id, source, key, length FROM rows WHERE is_ok AND length IS NOT NULL "
            f"ORDER BY length DESC, sample_id, key LIMIT {_LONGEST}"
        ).to_arrow_table()
    rejected: dict[str | None, dict[str, int]] = {}
    for row in reasons.to_pylist():
        rejected.setdefault(row["source"], {})[row["reason"]] = row["number"]
    return {row["source"]: row for row in by_source.to_pylist()}, rejected, longest.to_pylist()


def _column(name: str, is_there: bool) -> str:
    kind = "VARCHAR" if pa.types.is_string(LENGTHS.field(name).type) else "BIGINT"
    return f"""CAST({f'"{name}"' if is_there else "NULL"} AS {kind}) AS "{name}\""""
