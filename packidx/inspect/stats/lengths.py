"""What a lengths table holds, source by source."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from packidx.format.parquet import scan_of
from packidx.format.schema import LENGTHS
from packidx.lengths.rows import strongest_first
from packidx.lengths.table import Lengths, read_lengths

_LONGEST = 5
_PERCENTS = {"min": 0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}
_MODALITIES = {
    "text": "images + videos + audio = 0 AND is_told",
    "images": "images > 0 AND videos + audio = 0",
    "videos": "videos > 0 AND images + audio = 0",
    "audio": "audio > 0 AND images + videos = 0",
    "mixed": "(images > 0)::INT + (videos > 0)::INT + (audio > 0)::INT > 1",
    "unknown": "images + videos + audio = 0 AND NOT is_told",
}
_COLUMNS = (
    *("source", "status", "reason", "key", "sample_id", "length", "label_tokens", "method"),
    *("image_tokens", "video_tokens", "audio_tokens", "num_images", "num_videos"),
)
_ROWS = """SELECT *, greatest(image_tokens, num_images, 0) AS images,
    greatest(video_tokens, num_videos, 0) AS videos, greatest(audio_tokens, 0) AS audio,
    coalesce(image_tokens, num_images) + coalesce(video_tokens, num_videos) + audio_tokens
    IS NOT NULL AS is_told FROM ({parts})"""  # greatest() skips nulls
_SOURCES = """SELECT source AS name, count(*) AS num_samples,
    count(*) FILTER (is_ok) AS num_ok,
    CAST(coalesce(sum(length) FILTER (is_ok), 0) AS BIGINT) AS num_tokens,
    CAST(sum(label_tokens) FILTER (is_ok) AS BIGINT) AS label_tokens,
    quantile_disc(length, {shares}) FILTER (is_ok) AS quantiles,
    avg(length) FILTER (is_ok) AS mean, {kinds},
    CAST(sum(num_images) AS BIGINT) AS num_images, CAST(sum(num_videos) AS BIGINT) AS num_videos
    FROM rows GROUP BY source ORDER BY num_samples DESC, source"""
_COUNTED = """SELECT source, coalesce({name}, 'no {name}') AS name, count(*) AS number FROM rows
    WHERE {where} GROUP BY ALL ORDER BY number DESC, name"""
_LONG = f"""SELECT sample_id, source, key, length FROM rows WHERE is_ok AND length IS NOT NULL
    ORDER BY length DESC, sample_id, key LIMIT {_LONGEST}"""


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
    kinds = (
        f"count(*) FILTER (is_ok AND {holds}) AS {kind}" for kind, holds in _MODALITIES.items()
    )
    query = _SOURCES.format(shares=list(_PERCENTS.values()), kinds=", ".join(kinds))
    rejected, methods = (
        _COUNTED.format(name=name, where=where)
        for name, where in (("reason", "NOT is_ok"), ("method", "is_ok AND method IS NOT NULL"))
    )
    found, reasons, counted, longest = _asked(table, query, rejected, methods, _LONG)
    sources = [_source(row, reasons, counted) for row in found]
    labels = [source["label_tokens"] for source in sources if source["label_tokens"] is not None]
    totals = ("num_samples", "num_ok", "num_rejected", "num_tokens")
    all_reasons, all_methods = Counter[str](), Counter[str]()
    for source in sources:
        all_reasons.update(source["rejected"])
        all_methods.update(source["methods"])
    return {
        "path": path,
        **{name: sum(source[name] for source in sources) for name in totals},
        "label_tokens": sum(labels) if labels else None,
        "methods": strongest_first(dict(all_methods), path),
        "rejected": dict(all_reasons.most_common()),
        "sources": sources,
        "longest": longest,
    }


def _asked(table: Lengths, *queries: str) -> list[list[dict[str, Any]]]:
    """Rows of queries over the view ``rows`` of a table."""
    import duckdb

    with table.local_files() as paths, duckdb.connect() as connection:
        parts = []
        for path, names in zip(paths, table.names, strict=True):
            columns = ", ".join(_column(name, name in names) for name in _COLUMNS)
            ok = "coalesce(status = 'ok', false)" if "status" in names else "true"
            parts.append(f"SELECT {columns}, {ok} AS is_ok FROM {scan_of([path])}")
        connection.sql(f"CREATE VIEW rows AS {_ROWS.format(parts=' UNION ALL '.join(parts))}")
        return [connection.sql(query).to_arrow_table().to_pylist() for query in queries]


def _column(name: str, is_there: bool) -> str:
    kind = "VARCHAR" if pa.types.is_string(LENGTHS.field(name).type) else "BIGINT"
    return f"""CAST({f'"{name}"' if is_there else "NULL"} AS {kind}) AS "{name}\""""


def _source(
    row: dict[str, Any], reasons: list[dict[str, Any]], methods: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what is told of one source."""
    name, quantiles, mean = row["name"], row.pop("quantiles"), row.pop("mean")
    held = {kind: row.pop(kind) for kind in _MODALITIES}
    own = {each["name"]: each["number"] for each in methods if each["source"] == name}
    length = None if mean is None else dict(zip(_PERCENTS, quantiles, strict=True)) | {"mean": mean}
    return {
        **row,
        "num_rejected": row["num_samples"] - row["num_ok"],
        "methods": strongest_first(own, "lengths"),
        "rejected": {each["name"]: each["number"] for each in reasons if each["source"] == name},
        "length": length,
        "modality": {kind: number for kind, number in held.items() if number},
    }
